/* The kernel's side of AMD's compute driver, simulated: loaded into a program with LD_PRELOAD (see running.py).
 *
 * ROCMLAB_ROOT names a folder that `rocmlab simulate` wrote. The program finds its topology and its DRM files
 * at their usual paths below /sys, and /dev/kfd and /dev/dri/renderD* answer what ROCm's runtime and libdrm_amdgpu ask.
 * Memory is granted and counted, events work between threads, and queues are accepted; nothing that is put into a queue
 * ever runs. What a request answers is a reading of the kernel's sources and not a recording of one.
 * ROCMLAB_SIMULATED_TRACE=1 prints each request on stderr.
 *
 * An opened device is a memfd, and its size says which device it is, so that dup, fork and close need no care. Memory
 * that the kernel would map is private and anonymous: pages exist from when they are touched, and nothing is shared.
 *
 *   cc -shared -fPIC -O1 -o driver.so driver.c -ldl -lpthread        (needs the headers of the C library, no others)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 64
#define MAX_EVENTS 4096
#define KFD (-1) /* in place of a render node's minor */
#define MAX_MINOR 0xfffff
#define ROOM 4096
#define TRACE(...) (is_traced ? (void)fprintf(stderr, "simulated driver: " __VA_ARGS__) : (void)0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *host;
static int is_traced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t event_changed = PTHREAD_COND_INITIALIZER;
static uint64_t next_offset = 1 << 20; /* for mmap; only its uniqueness matters */

static int fail(int error) {
  errno = error;
  return -1;
}

/* ---- The host's files. System calls are made directly, because the C library's functions are replaced below. ---- */

static int read_host(const char *name, char *text, size_t size) {
  char path[ROOM];
  snprintf(path, sizeof path, "%s/%s", host, name);
  int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  ssize_t length = read(file, text, size - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  return length < 0 ? -1 : 0;
}

/* The value of a line such as `simd_count 192`. */
static uint64_t property(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (!strncmp(line, name, length) && line[length] == ' ') return strtoull(line + length, NULL, 10);
  return 0;
}

static struct gpu {
  uint32_t id, minor, device, revision, gfx, compute_units, clock, is_apu;
  uint64_t memory, used;
} gpus[MAX_GPUS];
static int gpu_count;

static void add_gpu(int node) {
  char name[256], text[8192];
  snprintf(name, sizeof name, "sys/devices/virtual/kfd/kfd/topology/nodes/%d/gpu_id", node);
  if (read_host(name, text, sizeof text)) return;
  struct gpu gpu = {.id = strtoul(text, NULL, 10)};
  snprintf(name, sizeof name, "sys/devices/virtual/kfd/kfd/topology/nodes/%d/properties", node);
  if (!gpu.id || read_host(name, text, sizeof text)) return;
  uint32_t per_unit = property(text, "simd_per_cu"), location = property(text, "location_id");
  gpu.minor = property(text, "drm_render_minor");
  gpu.device = property(text, "device_id");
  gpu.gfx = property(text, "gfx_target_version");
  gpu.compute_units = per_unit ? property(text, "simd_count") / per_unit : 0;
  gpu.clock = property(text, "max_engine_clk_fcompute");
  snprintf(name, sizeof name, "sys/bus/pci/devices/%04x:%02x:%02x.0/revision", (unsigned)property(text, "domain"),
           location >> 8 & 0xff, location >> 3 & 0x1f);
  if (!read_host(name, text, sizeof text)) gpu.revision = strtoul(text, NULL, 16);
  snprintf(name, sizeof name, "sys/devices/virtual/kfd/kfd/topology/nodes/%d/mem_banks/0/properties", node);
  if (!read_host(name, text, sizeof text)) gpu.memory = property(text, "size_in_bytes");
  gpus[gpu_count++] = gpu;
}

__attribute__((constructor)) static void start(void) {
  const char *root = getenv("ROCMLAB_ROOT");
  host = root ? strdup(root) : NULL; /* programs that set their title write over the environment */
  is_traced = getenv("ROCMLAB_SIMULATED_TRACE") != NULL;
  for (int node = 0; host && node < 2 * MAX_GPUS && gpu_count < MAX_GPUS; node++) add_gpu(node);
}

static struct gpu *gpu_of(uint32_t id) {
  for (int i = 0; i < gpu_count; i++)
    if (gpus[i].id == id) return &gpus[i];
  return NULL;
}

/* ---- Device nodes ---- */

/* The size of the memfd of an opened device, less its minor: no other file without a name is that large. */
#define MARK INT64_C(0x726f636d00000000)

static int is_opened(int file, int *minor) {
  struct stat found;
  if (file < 0 || syscall(SYS_newfstatat, file, "", &found, AT_EMPTY_PATH) || found.st_nlink) return 0;
  if (found.st_size < MARK + KFD || found.st_size > MARK + MAX_MINOR) return 0;
  *minor = found.st_size - MARK;
  return 1;
}

static int is_device(const char *path, int *minor) {
  char rest;
  if (!host || !path) return 0;
  *minor = KFD;
  return !strcmp(path, "/dev/kfd") || sscanf(path, "/dev/dri/renderD%d%c", minor, &rest) == 1;
}

/* The error that a fault of the host prescribes for a path: "dev/dri/renderD128": "EPERM". */
static int fault_of(const char *path) {
  static const struct { const char *name; int number; } errors[] = {{"EPERM", EPERM}, {"EACCES", EACCES}, {"EBUSY", EBUSY}};
  char text[65536], key[256];
  snprintf(key, sizeof key, "\"%s\": \"", path + 1);
  if (read_host("rocmlab-faults.json", text, sizeof text)) return 0;
  const char *found = strstr(text, key);
  for (size_t i = 0; found && i < sizeof errors / sizeof *errors; i++)
    if (!strncmp(found + strlen(key), errors[i].name, strlen(errors[i].name))) return errors[i].number;
  return found ? EIO : 0;
}

/* Mode and group decide for every user alike, as rocmlab reads a simulated host; root is a member of each group. */
static int may_open(const struct stat *node) {
  if ((node->st_mode & 6) == 6) return 1;
  if ((node->st_mode & 060) != 060) return 0;
  gid_t groups[1024];
  int count = getgroups(1024, groups), is_member = geteuid() == 0 || getegid() == node->st_gid;
  while (!is_member && count-- > 0) is_member = groups[count] == node->st_gid;
  return is_member;
}

/* The error with which a device node opens; 0 if it does. */
static int error_of(const char *path) {
  char inside[ROOM];
  struct stat found;
  snprintf(inside, sizeof inside, "%s%s", host, path);
  if (syscall(SYS_newfstatat, AT_FDCWD, inside, &found, 0)) return ENOENT;
  int error = fault_of(path);
  return error ? error : may_open(&found) ? 0 : EACCES;
}

static int open_device(const char *path, int flags, int minor) {
  int error = error_of(path);
  int file = error ? -1 : memfd_create(path + 5, flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
  TRACE("open %s: %s\n", path, error ? strerror(error) : "opened");
  if (file < 0) return fail(error ? error : errno);
  if (minor > MAX_MINOR || ftruncate(file, MARK + minor)) {
    close(file);
    return fail(EIO);
  }
  return file;
}

/* ---- Requests to /dev/kfd, as the kernel's uapi header kfd_ioctl.h lays them out ---- */

enum { /* numbers; those that are accepted without any effect that a program could see have no layout below */
  GET_VERSION = 0x01, CREATE_QUEUE, DESTROY_QUEUE, SET_MEMORY_POLICY, GET_CLOCKS, UPDATE_QUEUE = 0x07, CREATE_EVENT,
  DESTROY_EVENT, SET_EVENT, RESET_EVENT, WAIT_EVENTS, SET_SCRATCH = 0x11, GET_TILES, SET_TRAP_HANDLER, GET_APERTURES,
  ACQUIRE_VM, ALLOCATE, FREE, MAP, UNMAP, SET_CU_MASK, ALLOCATE_GWS = 0x1e, SHARED_VIRTUAL_MEMORY = 0x20, SET_XNACK,
  GET_AVAILABLE = 0x23, ENABLE_RUNTIME = 0x25,
};
struct version { uint32_t major, minor; };
struct queue {
  uint64_t ring, write_at, read_at, doorbell_offset;
  uint32_t ring_bytes, gpu, kind, percentage, priority, id;
  uint64_t end_of_pipe, end_of_pipe_bytes, context;
  uint32_t context_bytes, stack_bytes;
};
struct clocks { uint64_t gpu, cpu, system, system_hertz; uint32_t gpu_id, unused; };
struct apertures { uint64_t to; uint32_t count, unused; };
struct aperture { uint64_t lds_first, lds_last, scratch_first, scratch_last, memory_first, memory_last; uint32_t gpu, unused; };
struct new_event { uint64_t page_offset; uint32_t trigger, kind, resets, node, id, slot; };
struct event { uint32_t id, unused; };
struct awaited { uint64_t happened[5]; uint32_t id, unused; };
struct wait { uint64_t events; uint32_t count, is_for_all, milliseconds, result; };
enum { COMPLETE, TIMEOUT }; /* results of it */
struct tiles { uint64_t tiles, macro_tiles; uint32_t tile_count, macro_tile_count, gpu, address_config, banks, ranks; };
struct vm { uint32_t file, gpu; };
struct allocation { uint64_t address, bytes, handle, mmap_offset; uint32_t gpu, flags; };
enum { OF_GPU = 1, OF_USER = 4 }; /* flags of it */
struct release { uint64_t handle; };
struct map { uint64_t handle, gpus; uint32_t count, done; };
struct xnack { int32_t is_enabled; };
struct available { uint64_t bytes; uint32_t gpu, unused; };
struct runtime { uint64_t debugger; uint32_t mode, capabilities; };

struct memory { /* what a handle points to */
  struct gpu *gpu; /* whose own memory it is; NULL: the host's */
  uint64_t bytes;
};

static int allocate(struct allocation *request) {
  struct gpu *gpu = gpu_of(request->gpu);
  if (!gpu || !request->bytes) return fail(EINVAL);
  int is_own = (request->flags & OF_GPU) != 0;
  if (is_own && request->bytes > gpu->memory - gpu->used) return fail(ENOMEM);
  struct memory *memory = malloc(sizeof *memory);
  if (!memory) return fail(ENOMEM);
  *memory = (struct memory){is_own ? gpu : NULL, request->bytes};
  if (is_own) gpu->used += request->bytes;
  request->handle = (uintptr_t)memory;
  if (!(request->flags & OF_USER)) {
    request->mmap_offset = next_offset;
    next_offset += (request->bytes + 0xffff) & ~UINT64_C(0xffff);
  }
  return 0;
}

static int release(struct release *request) {
  struct memory *memory = (void *)(uintptr_t)request->handle;
  if (!memory) return fail(EINVAL);
  if (memory->gpu) memory->gpu->used -= memory->bytes;
  free(memory);
  return 0;
}

static int get_apertures(struct apertures *request) {
  struct aperture *to = (void *)(uintptr_t)request->to;
  uint32_t count = request->count < (uint32_t)gpu_count ? request->count : (uint32_t)gpu_count;
  for (uint32_t i = 0; i < count; i++)
    to[i] = (struct aperture){
        .gpu = gpus[i].id, .memory_first = 0x4000, .memory_last = (UINT64_C(1) << 47) - 1,
        .lds_first = UINT64_C(1) << 48, .lds_last = (UINT64_C(1) << 48) + 0xffffffff,
        .scratch_first = UINT64_C(2) << 48, .scratch_last = (UINT64_C(2) << 48) + 0xffffffff};
  request->count = request->count ? count : (uint32_t)gpu_count; /* 0 asks how many there are */
  return 0;
}

static struct { int is_used, is_set, resets; } events[MAX_EVENTS];

static int create_event(struct new_event *request) {
  for (uint32_t id = 1; id < MAX_EVENTS; id++)
    if (!events[id].is_used) {
      events[id].is_used = 1;
      events[id].is_set = 0;
      events[id].resets = request->resets;
      request->id = request->slot = request->trigger = id;
      request->page_offset = 0;
      return 0;
    }
  return fail(ENOSPC);
}

static int set_event(uint32_t id, int is_used, int is_set) {
  if (id >= MAX_EVENTS) return fail(EINVAL);
  events[id].is_used = is_used;
  events[id].is_set = is_set;
  pthread_cond_broadcast(&event_changed);
  return 0;
}

static int has_happened(const struct awaited *event) { return event->id < MAX_EVENTS && events[event->id].is_set; }

static int wait_events(struct wait *request) {
  struct awaited *awaited = (void *)(uintptr_t)request->events;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  uint64_t nanoseconds = until.tv_nsec + request->milliseconds % 1000 * UINT64_C(1000000);
  until.tv_sec += request->milliseconds / 1000 + nanoseconds / 1000000000;
  until.tv_nsec = nanoseconds % 1000000000;
  request->result = TIMEOUT;
  for (;;) {
    uint32_t ready = 0;
    for (uint32_t i = 0; i < request->count; i++) ready += has_happened(&awaited[i]);
    if (ready && (ready == request->count || !request->is_for_all)) break;
    if (!request->milliseconds) return 0;
    if (request->milliseconds >= 0xfffffffe) pthread_cond_wait(&event_changed, &lock);
    else if (pthread_cond_timedwait(&event_changed, &lock, &until)) return 0;
  }
  for (uint32_t i = 0; i < request->count; i++)
    if (has_happened(&awaited[i]) && events[awaited[i].id].resets) events[awaited[i].id].is_set = 0;
  request->result = COMPLETE;
  return 0;
}

static int get_clocks(struct clocks *request) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  request->cpu = request->system = now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
  request->system_hertz = 1000000000;
  request->gpu = request->system / 10;
  return 0;
}

static int create_queue(struct queue *request) {
  if (!gpu_of(request->gpu)) return fail(EINVAL);
  request->id = next_offset >> 16;
  request->doorbell_offset = next_offset;
  next_offset += 0x10000;
  return 0;
}

static int acquire_vm(const struct vm *request) {
  struct gpu *gpu = gpu_of(request->gpu);
  int minor;
  return gpu && is_opened(request->file, &minor) && minor == (int)gpu->minor ? 0 : fail(EINVAL);
}

static int get_available(struct available *request) {
  struct gpu *gpu = gpu_of(request->gpu);
  if (!gpu) return fail(EINVAL);
  request->bytes = gpu->memory - gpu->used;
  return 0;
}

static int ask_kfd(unsigned number, void *at) {
  TRACE("/dev/kfd: request 0x%02x\n", number);
  switch (number) {
  case GET_VERSION: *(struct version *)at = (struct version){1, 18}; return 0;
  case CREATE_QUEUE: return create_queue(at);
  case GET_CLOCKS: return get_clocks(at);
  case CREATE_EVENT: return create_event(at);
  case DESTROY_EVENT: return set_event(((struct event *)at)->id, 0, 1); /* wakes those who wait for it */
  case SET_EVENT: return set_event(((struct event *)at)->id, 1, 1);
  case RESET_EVENT: return set_event(((struct event *)at)->id, 1, 0);
  case WAIT_EVENTS: return wait_events(at);
  case GET_TILES: *(struct tiles *)at = (struct tiles){.gpu = ((struct tiles *)at)->gpu, .address_config = 0x444}; return 0;
  case GET_APERTURES: return get_apertures(at);
  case ACQUIRE_VM: return acquire_vm(at);
  case ALLOCATE: return allocate(at);
  case FREE: return release(at);
  case MAP: case UNMAP: ((struct map *)at)->done = ((struct map *)at)->count; return 0;
  case SET_XNACK: /* no simulated GPU retries after a page fault */
    if (((struct xnack *)at)->is_enabled > 0) return fail(EPERM);
    ((struct xnack *)at)->is_enabled = 0;
    return 0;
  case GET_AVAILABLE: return get_available(at);
  case ENABLE_RUNTIME: ((struct runtime *)at)->capabilities = 0; return 0;
  case DESTROY_QUEUE: case UPDATE_QUEUE: case SET_CU_MASK: case ALLOCATE_GWS: case SET_MEMORY_POLICY: case SET_SCRATCH:
  case SET_TRAP_HANDLER: case SHARED_VIRTUAL_MEMORY: return 0;
  default: TRACE("/dev/kfd: request 0x%02x is unknown\n", number); return fail(EINVAL);
  }
}

/* ---- Requests to a render node: what libdrm_amdgpu asks when it opens a device. Layouts: uapi drm.h, amdgpu_drm.h ---- */

struct drm_text { size_t size; char *at; };
struct drm_version { int major, minor, patch; struct drm_text name, date, description; };
struct drm_capability { uint64_t name, value; };
struct amdgpu_query { uint64_t answer; uint32_t size, kind; };
struct amdgpu_device {
  uint32_t device, chip_revision, external_revision, revision, family, engines, arrays_per_engine, counter_khz;
  uint64_t core_khz, memory_khz;
  uint32_t compute_units, always_on, bitmap[16], backends_mask, backends, contexts, link_generation;
  uint64_t flags, address_first, address_last;
  uint32_t address_alignment, fragment_bytes, page_bytes, constant_bytes, memory_kind, memory_bits, unused1[14];
  uint32_t wave_size, unused2[23];
  uint64_t high_first, high_last;
};
_Static_assert(sizeof(struct amdgpu_device) == 352, "the kernel's layout");
enum { DRM_VERSION = 0x00, DRM_CAPABILITY = 0x0c, DRM_QUERY = 0x45 }; /* numbers of requests */
enum { IS_WORKING = 0x00, VRAM_AND_GTT = 0x14, DEVICE = 0x16, MEMORY = 0x19 }; /* kinds of queries */

static void answer_text(struct drm_text *to, const char *text) {
  if (to->at) memcpy(to->at, text, to->size < strlen(text) ? to->size : strlen(text));
  to->size = strlen(text);
}

/* AMDGPU_FAMILY_* of a gfx version, which is written 110501 for 11.5.1. */
static uint32_t family(uint32_t gfx) {
  if (gfx >= 120000) return 152;
  if (gfx >= 110500) return 150;
  return gfx >= 110000 ? 145 : gfx >= 100000 ? 143 : 141;
}

static int query(const struct gpu *gpu, const struct amdgpu_query *request) {
  union { uint32_t word; uint64_t sizes[512]; struct amdgpu_device device; } answer = {.sizes = {0}};
  switch (request->kind) {
  case IS_WORKING: answer.word = 1; break;
  case VRAM_AND_GTT: answer.sizes[0] = answer.sizes[1] = answer.sizes[2] = gpu->memory; break;
  case MEMORY: answer.sizes[0] = answer.sizes[1] = answer.sizes[4] = gpu->memory; break;
  case DEVICE:
    answer.device = (struct amdgpu_device){
        .device = gpu->device, .external_revision = 1, .revision = gpu->revision, .family = family(gpu->gfx),
        .engines = 1, .arrays_per_engine = 1, .counter_khz = 100000, .core_khz = gpu->clock * UINT64_C(1000),
        .memory_khz = 1000000, .compute_units = gpu->compute_units, .backends_mask = 1, .backends = 1,
        .address_first = 1 << 21, .address_last = UINT64_C(1) << 47, .address_alignment = 4096,
        .fragment_bytes = 1 << 21, .page_bytes = 4096, .memory_kind = 9, .memory_bits = 384,
        .wave_size = gpu->gfx < 100000 ? 64 : 32,
        .high_first = UINT64_C(0xffff800000000000), .high_last = UINT64_C(0xffffffffffe00000)};
  }
  memcpy((void *)(uintptr_t)request->answer, &answer, request->size < sizeof answer ? request->size : sizeof answer);
  return 0;
}

static int ask_drm(int minor, unsigned number, void *at) {
  struct drm_version *version = at;
  struct gpu *gpu = NULL;
  TRACE("/dev/dri/renderD%d: request 0x%02x\n", minor, number);
  for (int i = 0; i < gpu_count; i++)
    if ((int)gpus[i].minor == minor) gpu = &gpus[i];
  switch (number) {
  case DRM_VERSION:
    version->major = 3;
    version->minor = 64;
    version->patch = 0;
    answer_text(&version->name, "amdgpu");
    answer_text(&version->date, "0");
    answer_text(&version->description, "AMD GPU");
    return 0;
  case DRM_CAPABILITY: ((struct drm_capability *)at)->value = 1; return 0;
  case DRM_QUERY:
    if (gpu) return query(gpu, at); /* fall through */
  default: TRACE("/dev/dri/renderD%d: request 0x%02x is unknown\n", minor, number); return fail(gpu ? EINVAL : ENODEV);
  }
}

/* ---- Functions of the C library in whose place these are ---- */

int ioctl(int file, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *at = va_arg(list, void *);
  va_end(list);
  int minor, result;
  if (!is_opened(file, &minor)) return REAL(ioctl)(file, request, at);
  pthread_mutex_lock(&lock);
  if (_IOC_TYPE(request) != (minor == KFD ? 'K' : 'd')) result = fail(ENOTTY);
  else result = minor == KFD ? ask_kfd(_IOC_NR(request), at) : ask_drm(minor, _IOC_NR(request), at);
  pthread_mutex_unlock(&lock);
  return result;
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  int minor;
  if (is_opened(file, &minor)) {
    flags = (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    file = -1;
    offset = 0;
  }
  return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
void *mmap64(void *, size_t, int, int, int, off64_t) __attribute__((alias("mmap")));

/* The path to use: that of the simulated host for what describes GPUs. */
static const char *served(const char *path, char *room) {
  static const char *const parts[] = {
      "/dev/dri", "/dev/kfd", "/proc/cpuinfo", "/sys/bus/pci/", "/sys/bus/platform/devices/amdgpu", "/sys/class/drm",
      "/sys/class/kfd", "/sys/dev/char/226:", "/sys/devices/pci", "/sys/devices/virtual/kfd", "/sys/module/amdgpu"};
  for (size_t i = 0; host && path && i < sizeof parts / sizeof *parts; i++)
    if (!strncmp(path, parts[i], strlen(parts[i]))) {
      snprintf(room, ROOM, "%s%s", host, path);
      return room;
    }
  return path;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  char room[ROOM];
  int minor;
  if (is_device(path, &minor)) return open_device(path, flags, minor);
  const char *used = served(path, room);
  if (used == room && flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) return fail(EACCES); /* programs change no host */
  return syscall(SYS_openat, folder, used, flags, mode);
}

#define OPEN(name, folder, ...)                                                   \
  int name(__VA_ARGS__ const char *path, int flags, ...) {                        \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;      \
    va_end(list);                                                                 \
    return open_at(folder, path, flags, mode);                                    \
  }
OPEN(open, AT_FDCWD, )
OPEN(open64, AT_FDCWD, )
#define COMMA ,
OPEN(openat, folder, int folder COMMA)
OPEN(openat64, folder, int folder COMMA)

FILE *fopen(const char *path, const char *mode) {
  char room[ROOM];
  const char *used = served(path, room);
  if (used == room && strpbrk(mode, "wa+")) return fail(EACCES), NULL;
  return REAL(fopen)(used, mode);
}
FILE *fopen64(const char *, const char *) __attribute__((alias("fopen")));

DIR *opendir(const char *path) {
  char room[ROOM];
  return REAL(opendir)(served(path, room));
}

ssize_t readlink(const char *path, char *to, size_t size) {
  char room[ROOM];
  return syscall(SYS_readlinkat, AT_FDCWD, served(path, room), to, size);
}

/* As opening would end: for a device node by its faults and its mode, and nothing of the host can be written. */
static int access_at(int folder, const char *path, int mode, int flags) {
  char room[ROOM];
  int minor;
  const char *used = served(path, room);
  if (mode != F_OK && is_device(path, &minor)) {
    int error = mode & X_OK ? EACCES : error_of(path);
    return error ? fail(error) : 0;
  }
  if (used == room && mode & W_OK) return fail(EACCES);
  return flags ? syscall(SYS_faccessat2, folder, used, mode, flags) : syscall(SYS_faccessat, folder, used, mode);
}
int access(const char *path, int mode) { return access_at(AT_FDCWD, path, mode, 0); }
int euidaccess(const char *path, int mode) { return access_at(AT_FDCWD, path, mode, AT_EACCESS); }
int eaccess(const char *path, int mode) { return access_at(AT_FDCWD, path, mode, AT_EACCESS); }
int faccessat(int folder, const char *path, int mode, int flags) { return access_at(folder, path, mode, flags); }

/* A simulated device node is shown as the character device that it stands for. */
static int stat_at(int file, const char *path, void *to, int flags) {
  char room[ROOM];
  int minor, result = syscall(SYS_newfstatat, file, served(path, room), to, flags);
  if (!result && (flags & AT_EMPTY_PATH ? is_opened(file, &minor) : is_device(path, &minor))) {
    ((struct stat *)to)->st_mode = (((struct stat *)to)->st_mode & 07777) | S_IFCHR;
    ((struct stat *)to)->st_rdev = minor == KFD ? makedev(238, 0) : makedev(226, minor);
  }
  return result;
}

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *to) {
  char room[ROOM];
  int minor, result = syscall(SYS_statx, folder, served(path, room), flags, mask, to);
  if (!result && is_device(path, &minor)) {
    to->stx_mode = (to->stx_mode & 07777) | S_IFCHR;
    to->stx_rdev_major = minor == KFD ? 238 : 226;
    to->stx_rdev_minor = minor == KFD ? 0 : minor;
  }
  return result;
}

/* Also the names that programs use which were built with a C library older than 2.33. */
#define STAT(name, type)                                                                                     \
  int name(const char *path, struct type *to) { return stat_at(AT_FDCWD, path, to, 0); }                      \
  int l##name(const char *path, struct type *to) { return stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW); } \
  int f##name(int file, struct type *to) { return stat_at(file, "", to, AT_EMPTY_PATH); }
#define OLD_STAT(suffix, type)                                                                                        \
  int __x##suffix(int v, const char *path, struct type *to) { return (void)v, stat_at(AT_FDCWD, path, to, 0); }        \
  int __lx##suffix(int v, const char *path, struct type *to) {                                                        \
    return (void)v, stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);                                                 \
  }                                                                                                                   \
  int __fx##suffix(int v, int file, struct type *to) { return (void)v, stat_at(file, "", to, AT_EMPTY_PATH); }
STAT(stat, stat)
STAT(stat64, stat64)
OLD_STAT(stat, stat)
OLD_STAT(stat64, stat64)
