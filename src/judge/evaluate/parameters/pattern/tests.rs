//! Tests the matches, errors and running time of patterns. Does not test the regex engine.

use super::*;

fn compiled(source: &str) -> Result<Pattern, String> {
    let mut pattern = Pattern::from(source.to_owned());
    pattern
        .compile(PatternLimits::FILE.max_compiled_size)
        .map(|()| pattern)
}

#[test]
fn digits_words_and_boundaries_are_ascii_but_white_space_is_unicode() {
    for (pattern, text, matches) in [
        (r"^\d+$", "123", true),
        (r"^\d+$", "١٢٣", false),
        (r"^\D+$", "١٢٣", true),
        (r"^[\d.]+$", "1.5", true),
        (r"^[^\d]$", "٣", true),
        (r"^\w+$", "caf", true),
        (r"^\w+$", "café", false),
        (r"^\W$", "é", true),
        (r"(?i)^\w$", "ſ", false),
        (r"(?i)^\W$", "ſ", true),
        (r"(?i)^[a-z]x$", "QX", true),
        (r"\bcaf\b", "café", true),
        (r"\Bé", "日é", true),
        (r"\b{start}b", "é b", true),
        (r"^a\sb$", "a\u{2003}b", true),
        (r"^a\Sb$", "a\u{2003}b", false),
        (r"^.$", "日", true),
        (r"^[é日]$", "日", true),
        (r"^\p{L}+$", "日本", true),
        (r"^\\d$", r"\d", true),
        (
            r"(?x) ^ \d # a digit: \d
             $",
            "7",
            true,
        ),
        ("npm test", "run npm test now", true),
    ] {
        let compiled = compiled(pattern).unwrap();
        assert_eq!(compiled.is_match(text), matches, "`{pattern}` on `{text}`");
    }
}

#[test]
fn a_plain_text_is_found_where_the_regex_finds_it() {
    for pattern in [
        "",
        "^",
        "$",
        "^$",
        "bash",
        "^bash",
        "bash$",
        "^bash$",
        "run bash",
        "ä",
        "^a-b/c:d$",
        "ba.h",
        "b^ash",
    ] {
        let compiled = compiled(pattern).unwrap();
        assert_eq!(
            compiled.compiled.as_ref().unwrap().plain.is_some(),
            !["ba.h", "b^ash"].contains(&pattern),
            "`{pattern}`"
        );
        for text in [
            "",
            "bash",
            "bash\n",
            "\nbash",
            "run bash now",
            "bas",
            "Bash",
            "ä",
            "a-b/c:d",
            "a-b/c:d ",
            "bashbash",
        ] {
            assert_eq!(
                compiled.is_match(text),
                compiled.compiled.as_ref().unwrap().regex.is_match(text),
                "`{pattern}` on `{text}`"
            );
        }
    }
}

#[test]
fn refusals_say_why() {
    for (pattern, part) in [
        (
            "(?=x)",
            "uses look-around, which is not supported: patterns run in linear time",
        ),
        ("a(?!b)", "uses look-around"),
        ("(?<!x)y", "uses look-around"),
        (
            r"(a)\1",
            "uses a back-reference, which is not supported: patterns run in linear time",
        ),
        (r"(?<n>a)\k<n>", "uses a back-reference"),
        (
            "é[a",
            "`é[a` is not a regular expression: unclosed character class, at character 2",
        ),
        (
            "[a-\\d]",
            "is not a regular expression: invalid range boundary",
        ),
        ("a{1000}{1000}", "is larger than 1024 KiB when compiled"),
        (
            r"\p{Nonsense}",
            "is not a regular expression: Unicode property not found",
        ),
    ] {
        let refusal = compiled(pattern).unwrap_err();
        assert!(refusal.contains(part), "`{pattern}`: {refusal}");
    }
}

#[test]
fn deep_nesting_is_refused_not_a_stack_overflow() {
    let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(compiled(&deep).unwrap_err().contains("nest"));
}

#[test]
fn a_hostile_pattern_reads_10_mb_in_linear_time() {
    // This pattern takes exponential time in a backtracking engine. Here the work is bounded by
    // pattern × text, so the test finishes.
    let pattern = compiled(r"^(a+)+$|(a|aa)+b|(\w+\s?)*!$").unwrap();
    assert!(!pattern.is_match(&("a".repeat(10 << 20) + "?")));
}
