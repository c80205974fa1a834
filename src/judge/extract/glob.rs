//! Matches globs, for the names of hand-off calls and for selectors.

/// Returns true if the whole text matches the glob. `*` matches any text, `?` one character, every
/// other character itself. The time is at most proportional to text × glob.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (glob.chars(), text.chars());
    // The position after the last star. If the following text does not match, the star consumes one
    // more character.
    let mut retry = None;
    loop {
        let before = (pattern.clone(), text.clone());
        match (pattern.next(), text.next()) {
            (Some('*'), _) => {
                text = before.1;
                retry = Some((pattern.clone(), text.clone()));
            }
            (Some('?'), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            (None, None) => return true,
            _ => {
                let Some((after_star, mut taken)) = retry.take() else {
                    return false;
                };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, text) = (after_star.clone(), taken.clone());
                retry = Some((after_star, taken));
            }
        }
    }
}
