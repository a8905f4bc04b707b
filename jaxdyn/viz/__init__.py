"""Pictures: robots in the browser, in pages and in images; plots of results. Needs the extra `viz`."""

from jaxdyn.viz._browser import browser_path, client_of, open_page, settle
from jaxdyn.viz._films import PICTURES, film_path
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._images import save_png, save_video
from jaxdyn.viz._plots import COLORS, figure_class, plot_masses, plot_torques, plot_trajectory
from jaxdyn.viz._viewer import PAGES, Viewer
from jaxdyn.viz._views import save_html, view
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
    "save_video",
    "view",
]
