"""Pictures: robots in the browser, in pages and in images; plots of results. Needs the extra `viz`."""

from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._images import PICTURES, browser_path, open_page, save_png, settle
from jaxdyn.viz._plots import COLORS, figure_class, plot_masses, plot_torques, plot_trajectory
from jaxdyn.viz._viewer import PAGES, Viewer, client_of, save_html, view
from jaxdyn.viz._visuals import load_visuals

__all__ = [
    "Viewer",
    "Visual",
    "load_visuals",
    "plot_masses",
    "plot_torques",
    "plot_trajectory",
    "save_html",
    "save_png",
    "view",
]
