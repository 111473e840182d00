"""Our errors on the hub's own pages."""

from __future__ import annotations

import html

from tornado import web

from rocmlab.base.errors import RocmlabError


def shown(status: int, err: RocmlabError) -> web.HTTPError:
    """Return an error that JupyterHub shows to the user."""
    error = web.HTTPError(status, str(err), reason=err.problem.what[:100].encode("ascii", "replace").decode())
    vars(error).update(jupyterhub_message=str(err), jupyterhub_html_message=f"<pre>{html.escape(str(err))}</pre>")
    return error
