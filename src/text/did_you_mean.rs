//! Finds the legal word that the author of a misspelt word probably meant.

/// Returns the legal word nearest to a misspelt one, if it is near enough to be plausible. Among
/// equally near words, the first wins.
pub fn nearest<'a>(word: &str, legal: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain_word = plain(word);
    legal
        .into_iter()
        .filter_map(|candidate| {
            let plain_candidate = plain(candidate);
            let distance = strsim::damerau_levenshtein(&plain_word, &plain_candidate);
            // Allow one slip for every three letters: `grcp` is `grpc`, but `otlp` is not `log`.
            let n_letters = plain_word
                .chars()
                .count()
                .max(plain_candidate.chars().count());
            (distance * 3 <= n_letters || is_part(&plain_word, &plain_candidate))
                .then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Removes case and separators, in which most misspelt words differ: `toolCallsOrder` is
/// `tool_calls_order`.
fn plain(word: &str) -> String {
    word.chars()
        .filter(|letter| !matches!(letter, '-' | '_' | ' ' | '.'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Returns true if the word is a prefix or suffix of the candidate and at least half of it, such as
/// `cert` of `cert_file`.
fn is_part(word: &str, candidate: &str) -> bool {
    word.len() >= 3
        && word.len() * 2 >= candidate.len()
        && (candidate.starts_with(word) || candidate.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_a_different_word_is_not() {
        let keys = [
            "endpoint",
            "protocol",
            "signals",
            "headers",
            "compression",
            "timeout",
            "tool_calls_order",
            "cert_file",
        ];
        assert_eq!(nearest("endpiont", keys), Some("endpoint"));
        assert_eq!(nearest("toolCallsOrder", keys), Some("tool_calls_order"));
        assert_eq!(nearest("tool-calls-order", keys), Some("tool_calls_order"));
        assert_eq!(nearest("time_out", keys), Some("timeout"));
        assert_eq!(nearest("cert", keys), Some("cert_file"));
        assert_eq!(nearest("exporters", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("grcp", ["grpc", "http/protobuf"]), Some("grpc"));
    }
}
