import 'uplot/dist/uPlot.min.css';
import './panel.css';
