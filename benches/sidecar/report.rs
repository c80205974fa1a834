//! Turns the figures of rounds into lines of a table.

/// The figures of one variant, one for each round.
pub(crate) type Series = Vec<f64>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = |idx: usize| values.get(idx).copied().unwrap_or(f64::NAN);
    Spread {
        median: at(values.len() / 2),
        min: at(0),
        max: at(values.len().saturating_sub(1)),
    }
}

/// Returns the spread of the rounds' ratios, not the ratio of medians, because a disturbance
/// affects both sides of a round.
pub(crate) fn ratio(measured: &[f64], base: &[f64]) -> Spread {
    spread(
        measured
            .iter()
            .zip(base)
            .map(|(measured, base)| measured / base),
    )
}

pub(crate) fn goal(name: &str, found: Spread, goal: f64) {
    let verdict = if found.median <= goal { "met" } else { "MISSED" };
    let Spread { median, min, max } = found;
    println!("  {name:<66} {median:>7.3}  ({min:.3} … {max:.3})  goal {goal:<5} {verdict}");
}

pub(crate) fn goal_at_least(name: &str, found: Spread, goal: f64) {
    let verdict = if found.median >= goal { "met" } else { "MISSED" };
    let Spread { median, min, max } = found;
    println!("  {name:<66} {median:>7.3}  ({min:.3} … {max:.3})  goal ≥ {goal:<5} {verdict}");
}

/// Prints a value that has no goal.
pub(crate) fn line(name: &str, found: Spread, unit: &str) {
    let Spread { median, min, max } = found;
    println!("  {name:<66} {median:>7.3}  ({min:.3} … {max:.3})  {unit}");
}

pub(crate) fn heading(text: &str) {
    println!("\n{text}");
}
