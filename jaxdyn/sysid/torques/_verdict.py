"""The worth of an identification, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxdyn._printing import percent
from jaxdyn.model import rotational_about_center
from jaxdyn.sysid.recordings import Recordings, as_recordings
from jaxdyn.sysid.torques._base_parameters import BaseParameters
from jaxdyn.sysid.torques._effect_columns import searched_numbers
from jaxdyn.sysid.torques._effects import frictionless_torque
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._layout import DELAYS, INERTIAL_NAMES, SCALES
from jaxdyn.sysid.torques._residual_causes import LEAST_PART, STRUCTURES, Cause

# A link is on the edge of what is physical if its mass spreads along one axis by less than this part of another.
_FLAT = 0.05
# A mass is far from its start if its interval excludes all within this factor.
_FAR = 2.0
# Values that keep more than this part of the prior's variance are not determined by the data.
_BY_PRIOR = 0.9
# The physical constraint costs something worth saying if it raises the error by this part.
_COST = 0.02
# Torques of gravity are alike if the cosine between them exceeds this: inertias that are wrong by factors keep it.
_ALIKE = 0.3
_SHOWN = 8
# How identify and JointEffects free a cause.
_FREED = {
    "lengths": "give lengths=True to identify, or lengths = true in the configuration of the program",
    "tilt": "give tilt=True to identify",
    "gain": "choose the effect gain for joints, if the inertias of links are known well",
    "flexibility": "choose the effect flexibility, or measure positions behind the gears",
}
_MEANING = {
    "gain": "gain (of drives or torque sensors)",
    "tilt": "tilt (of the robot's mount)",
    "flexibility": "flexibility (of joints)",
}
_AS_EFFECT = "choose it among the joint_effects"


def verdict(
    fit: InverseDynamicsFit,
    linear: InverseDynamicsFit | None,
    recordings: Recordings,
    causes: Sequence[Cause],
    refused: Mapping[str, tuple[float, float]],
) -> list[str]:
    """Return sentences about a fit: how it ended, its error, its constraints, what determines its parameters, and what
    its residuals point to. `refused` has, by the name of a cause that was tried as an effect and not taken, the part by
    which it decreased the mean square on held-out parts, and the standard error of that."""
    error = fit.evaluate(recordings).relative
    cutoff = min((x.cutoff for x in as_recordings(recordings) if x.cutoff), default=None)
    below = f" below {cutoff:.3g} Hz" if cutoff else ""
    ended = "The fit has converged" if fit.converged else f"The fit has not converged: {fit.message.partition(';')[0]}"
    out = [f"{ended}. On its own data the error is {percent(error)} of the torque's norm{below}."]
    out += _gravity(fit, recordings)
    out += _constraints(fit, linear, recordings, error)
    out += _determined(fit)
    out += _causes(causes, refused)
    if hidden := next((x.hidden for x in causes if x.name == "lengths"), ()):
        out.append(
            f"Wrong distances of these joints from the joints before would not show, even by a tenth: "
            f"{_listed(hidden)}. The fit takes them for inertias, which hold for the model's lengths alone."
        )
    return out


def _gravity(fit: InverseDynamicsFit, recordings: Recordings) -> list[str]:
    """A sentence where the torques of gravity are unlike those of the start, whatever the sizes of its inertias."""
    q = np.concatenate([x.completed(fit.before).q for x in as_recordings(recordings)])
    still = np.zeros((len(q), fit.model.nv))
    new, old = (frictionless_torque(x, q, still, still) for x in (fit.model, fit.before))
    alike = float(np.sum(new * old) / max(float(np.linalg.norm(new) * np.linalg.norm(old)), 1e-300))
    if alike > _ALIKE or not old.any():
        return []
    way = "opposite to" if alike < -_ALIKE else "unlike"
    return [
        f"The torques of gravity that were found are {way} those of the start (cosine {alike:.2g}): look at the "
        "direction of gravity in the model, and at the axes and zeros of its joints. A fit may make up for a wrong one "
        "by centers of mass on the other side, and leave no residuals."
    ]


def _constraints(
    fit: InverseDynamicsFit, linear: InverseDynamicsFit | None, recordings: Recordings, error: float
) -> list[str]:
    out, names = [], fit.model.body_names
    flat = [_is_flat(np.asarray(x.inertial_parameters)) for x in (fit.model, fit.before)]
    flattened = [name for name, now, before in zip(names, *flat, strict=True) if now and not before]
    cost = error / max(linear.evaluate(recordings).relative, 1e-300) - 1 if linear is not None else 0.0
    if linear is not None and cost > _COST and error > 1e-6:
        count, least = int((~linear.physical).sum()), percent(error / (1 + cost))
        out.append(
            f"Physical links and the prior raise the error on its own data by {percent(cost)}: least squares without "
            f"them has {least}, with {count} of {fit.model.nb} links not physical."
        )
    if flattened:
        out.append(
            f"On the edge of what is physical, where the start is not: {_listed(flattened)}. The fit puts the mass "
            f"close to a plane or a line: along one axis it spreads by less than {percent(_FLAT)} of another. Physical "
            f"does not mean plausible here."
        )
    return out


def _is_flat(parameters: np.ndarray) -> list[bool]:
    """Whether the mass of each body `[nb, 10]` lies close to a plane or a line: a second moment about the center of
    mass is nearly zero."""
    moments = (np.linalg.eigvalsh(rotational_about_center(p)) for p in parameters)
    spreads = (0.5 * x.sum() - x for x in moments)
    return [bool(x.min() < _FLAT**2 * x.max()) for x in spreads]


def _determined(fit: InverseDynamicsFit) -> list[str]:
    base, intervals = fit.base_parameters(), fit.intervals()
    weak = int((fit.intervals(base).prior_share > _BY_PRIOR).sum())
    by_prior = fit.decided_by_start(_BY_PRIOR)
    out = [
        f"The torques of these motions depend on {base.rank} combinations of the {len(base.names)} parameters"
        + (f", of {weak} of which the data say hardly more than the start." if weak else ".")
    ]
    if by_prior:
        out.append(
            f"{len(by_prior)} single parameters are decided by the start alone (the data leave more than "
            f"{percent(_BY_PRIOR)} of the prior's variance): {_by_owner(by_prior)}."
        )
    if base.unidentifiable:
        nothing = sorted(base.unidentifiable, key=base.names.index)
        out.append(
            f"No torque of these motions depends on these: {_by_owner(nothing)}. Their values and intervals come from "
            "the start, and from the prior's ties to other parameters of their link."
        )
    out += _searched(fit)
    if found := _positions(fit, base):
        out.append(f"Of lengths the data determine, in m: {'; '.join(found)}. The start decides all else about them.")
    start = np.asarray(fit.before.inertial_parameters, np.float64)[:, 0]
    far = []
    for i, name in enumerate(fit.model.body_names):
        lower, upper, share = (float(x[10 * i]) for x in (intervals.lower, intervals.upper, intervals.prior_share))
        if share < _BY_PRIOR and (upper < start[i] / _FAR or lower > start[i] * _FAR):
            far.append(f"{name} {fit.model.mass[i]:.3g} kg in [{lower:.3g}, {upper:.3g}], start {start[i]:.3g}")
    if far:
        out.append(f"Masses far from their start, with 95 % intervals: {'; '.join(far)}.")
    return out


def _searched(fit: InverseDynamicsFit) -> list[str]:
    """Sentences about the velocities of friction and the delays that were searched for."""
    if fit.refined is None:
        return []
    searched = searched_numbers(fit.effects, fit.model, fit.values.temperature is not None)
    turning = set(fit.model.topology.dof_units[searched.any(axis=0)]) <= {"rad"}
    unit = "rad" if turning else "rad or m"
    units = ["rad/s" if turning else "rad/s or m/s"] * 2 + [unit, "s", "s", "s"]
    kinds, dofs = (*SCALES, *DELAYS), fit.model.topology.dof_names
    found = [
        f"{kind} {', '.join(f'{x:.3g}' for x in values[chosen])} {unit} at {_all_or_listed(chosen, dofs)}"
        for kind, unit, values, chosen in zip(kinds, units, np.array(fit.shape), searched, strict=True)
        if chosen.any()
    ]
    out = [f"Found by a search: {'; '.join(found)}."] if found else []
    held = searched & ~fit.refined
    if held.any():
        shown = [f"{x} of {_all_or_listed(y, dofs)}" for x, y in zip(kinds, held, strict=True) if y.any()]
        out.append(f"Of these, steps of the fit did not settle {'; '.join(shown)}: the intervals take these as known.")
    return out


def _all_or_listed(chosen: np.ndarray, names: Sequence[str]) -> str:
    return "all joints" if chosen.all() else ", ".join(names[j] for j in np.flatnonzero(chosen).tolist())


def _by_owner(parameters: Sequence[str]) -> str:
    """Names of parameters, such as `m(link1)`, by the link or joint that they belong to."""
    owners: dict[str, list[str]] = {}
    for name in parameters:
        kind, _, owner = name.removesuffix(")").partition("(")
        owners.setdefault(owner, []).append(kind)
    shown = [
        f"{owner} ({'all' if len(kinds) == len(INERTIAL_NAMES) else ', '.join(kinds)})"
        for owner, kinds in owners.items()
    ]
    return _listed(shown, "; ")


def _positions(fit: InverseDynamicsFit, base: BaseParameters) -> list[str]:
    """The combinations of positions that the data determine, whatever the inertias are, with their intervals."""
    is_position = np.arange(len(base.names)) >= len(base.names) - 3 * len(fit.layout.places)
    x = fit.intervals(base)
    rows = np.flatnonzero(~base.matrix[:, ~is_position].any(axis=1) & (x.prior_share < _BY_PRIOR))
    return [f"{x.names[i]} = {x.value[i]:.4g} in [{x.lower[i]:.4g}, {x.upper[i]:.4g}]" for i in rows]


def _causes(causes: Sequence[Cause], refused: Mapping[str, tuple[float, float]]) -> list[str]:
    named, structure = ([x for x in causes if x.structure == kind] for kind in (False, True))
    evident, left = ([x for x in group if x.evident] for group in (named, structure))
    if not causes:
        return []
    out = [_something_else(left, bool(evident) and evident[0] is causes[0])] if left else []
    if not evident:
        names = ", ".join(x.name for x in named)
        weak = f"each explains less than {percent(LEAST_PART)} of what is left, or no more than chance may"
        none = ""
        if structure and not left:
            none = " Nor do they show structure in time, position, direction, velocity or other joints' motions."
            none += " What a fit can take for inertias or friction leaves no residuals."
        return [*out, f"The residuals point to none of these causes: {names} ({weak}).{none}"]
    first, *others = evident
    if first is not causes[0]:
        also = ", ".join(f"{_MEANING.get(x.name, x.name)} {percent(x.part)} (F = {x.statistic:.3g})" for x in evident)
        return [*out, f"Taken alone, each of these would explain a part of it, and may be mistaken for it: {also}."]
    name = _MEANING.get(first.name, first.name)
    out.insert(
        0,
        f"The residuals point to {name}, which would explain {percent(first.part)} of what is left (F = "
        f"{first.statistic:.3g}), most at {_listed(first.joints)}. The parameters and their intervals hold only if "
        f"nothing like that is missing. To estimate it, {_FREED.get(first.name, _AS_EFFECT)}.",
    )
    if others:
        also = ", ".join(f"{_MEANING.get(x.name, x.name)} {percent(x.part)} (F = {x.statistic:.3g})" for x in others)
        out.append(f"Taken alone, each of these would explain a part as well: {also}.")
    for name in (x.name for x in evident if x.name in refused):
        decrease, standard_error = refused[name]
        way = "smaller" if decrease > 0 else "larger"
        out.append(
            f"An effect of all joints was tried for {name}, and not taken: with it the mean square on parts that were "
            f"held out is {percent(abs(decrease))} {way} (standard error {percent(standard_error)})."
        )
    return out


def _something_else(left: Sequence[Cause], beside: bool) -> str:
    """A sentence about structure, `beside` a cause with a name."""
    found = "; ".join(
        f"{STRUCTURES[x.name]}, {percent(x.part)} of what is left at {_listed(x.joints)} (F = {x.statistic:.3g})"
        for x in left
    )
    start = "Beside that, something else" if beside else "Something else"
    return (
        f"{start} is left in the residuals, which no parameter here describes: {found}. Parameters and intervals are "
        "biased by it. An effect that is chosen for it may predict these motions and still be wrong."
    )


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    more = len(names) - _SHOWN
    return separator.join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
