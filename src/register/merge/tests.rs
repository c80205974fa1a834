//! Tests merged sets of criteria from two sources, by cases and by property. Judges nothing.

use proptest::prelude::{Strategy, prop, proptest};

use serde_json::json;

use super::*;

use crate::rfc3339::rfc3339;

pub(in crate::register) fn criterion(name: &str, tool: &str) -> Criterion {
    serde_json::from_value(
        json!({ "name": name, "evaluate": { "tool_call_order": { "tool_calls_order": [tool] } } }),
    )
    .unwrap()
}

fn registration(name: &str, tool: &str, expires_unix_nanos: Option<u64>) -> Registration {
    Registration {
        criterion: criterion(name, tool).into(),
        expires_unix_nanos,
    }
}

fn names(set: &CriteriaSet) -> Vec<(String, Vec<String>)> {
    let tools = |criterion: &Criterion| {
        let json = json!(criterion);
        serde_json::from_value(json["evaluate"]["tool_call_order"]["tool_calls_order"].clone())
            .unwrap()
    };
    set.active()
        .iter()
        .map(|criterion| (criterion.name.clone(), tools(criterion)))
        .collect()
}

#[test]
fn an_api_criterion_shadows_the_files_until_it_is_deleted() {
    let file = CriteriaSet::new(vec![criterion("b", "file"), criterion("a", "file")], []);
    let merged = file
        .with(registration("b", "api", None))
        .with(registration("c", "api", None));
    let pair = |name: &str, tool: &str| (name.to_owned(), vec![tool.to_owned()]);
    assert_eq!(
        names(&merged),
        [pair("b", "api"), pair("a", "file"), pair("c", "api")]
    );
    let shown = merged.get("b").unwrap();
    assert_eq!(
        (
            shown.source,
            shown.shadowed.map(|criterion| criterion.revision())
        ),
        (
            CriterionSource::Api,
            Some(file.get("b").unwrap().criterion.revision())
        )
    );
    assert_eq!(names(&merged.without("b").without("c")), names(&file));
    assert_eq!(merged.without("b").without("c").etag(), file.etag());
    // A change of the replaced criterion in the file does not affect the registration. The change
    // becomes visible when the registration is deleted.
    let later = merged.with_file(vec![criterion("b", "later")]);
    assert_eq!(names(&later), [pair("b", "api"), pair("c", "api")]);
    assert_eq!(
        later.get("b").unwrap().criterion,
        merged.get("b").unwrap().criterion
    );
    assert_ne!(
        later.get("b").unwrap().etag(),
        merged.get("b").unwrap().etag()
    );
}

#[test]
fn an_expired_registration_goes_at_its_time_and_not_before() {
    let registered = CriteriaSet::new(
        Vec::new(),
        [
            registration("a", "x", Some(10)),
            registration("b", "x", None),
            registration("c", "x", Some(20)),
        ],
    );
    assert_eq!(registered.next_expiry(), Some(10));
    assert!(registered.expired(9).is_none());
    let left = registered.expired(10).unwrap();
    assert_eq!((left.len(), left.next_expiry()), (2, Some(20)));
    assert_eq!(left.expired(u64::MAX).unwrap().next_expiry(), None);
}

#[test]
fn the_etag_of_a_set_changes_more_often_than_its_revision() {
    let file = CriteriaSet::new(vec![criterion("a", "x")], []);
    let api = CriteriaSet::new(Vec::new(), [registration("a", "x", None)]);
    let ending = CriteriaSet::new(Vec::new(), [registration("a", "x", Some(1))]);
    assert!(file.revision() == api.revision() && api.revision() == ending.revision());
    assert!(file.etag() != api.etag() && api.etag() != ending.etag());
    assert_ne!(CriteriaSet::default().revision(), file.revision());
}

#[test]
fn changes_are_logged_by_name_and_revision() {
    let before = CriteriaSet::new(
        vec![
            criterion("a", "x"),
            criterion("b", "x"),
            criterion("c", "x"),
        ],
        [],
    );
    let after = CriteriaSet::new(
        vec![criterion("c", "x"), criterion("a", "y")],
        [registration("d", "x", None)],
    );
    let changes = before.changes_to(&after);
    assert_eq!(
        (changes.added, changes.changed, changes.removed),
        (
            vec!["d".to_owned()],
            vec!["a".to_owned()],
            vec!["b".to_owned()]
        )
    );
    assert!(before.changes_to(&before).is_empty());
}

#[test]
fn times_are_written_as_rfc_3339() {
    assert_eq!(
        rfc3339(1_795_000_000_500_000_000),
        "2026-11-18T11:06:40.500Z"
    );
}

#[derive(Debug, Clone)]
enum Step {
    With(u8, u8),
    Without(u8),
    File(Vec<(u8, u8)>),
    All(Vec<(u8, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || (0..6_u8, 0..3_u8);
    prop::strategy::Union::new([
        pair()
            .prop_map(|(name, tool)| Step::With(name, tool))
            .boxed(),
        (0..6_u8).prop_map(Step::Without).boxed(),
        prop::collection::vec(pair(), 0..4)
            .prop_map(Step::File)
            .boxed(),
        prop::collection::vec(pair(), 0..4)
            .prop_map(Step::All)
            .boxed(),
    ])
}

proptest! {
    /// The model is two maps; the second map overrides the first.
    #[test]
    fn any_steps_leave_the_api_over_the_file(steps in prop::collection::vec(step(), 0..20)) {
        let (mut file, mut api) = (BTreeMap::new(), BTreeMap::new());
        let mut registered = CriteriaSet::default();
        for step in steps {
            match step {
                Step::With(name, tool) => {
                    registered =
                        registered.with(registration(&name.to_string(), &tool.to_string(), None));
                    api.insert(name.to_string(), tool.to_string());
                }
                Step::Without(name) => {
                    registered = registered.without(&name.to_string());
                    api.remove(&name.to_string());
                }
                Step::File(pairs) => {
                    let unique: BTreeMap<String, String> = pairs
                        .iter()
                        .map(|(name, tool)| (name.to_string(), tool.to_string()))
                        .collect();
                    registered = registered.with_file(
                        unique
                            .iter()
                            .map(|(name, tool)| criterion(name, tool))
                            .collect(),
                    );
                    file = unique;
                }
                Step::All(pairs) => {
                    api = pairs
                        .iter()
                        .map(|(name, tool)| (name.to_string(), tool.to_string()))
                        .collect();
                    registered = registered.with_all(
                        api.iter()
                            .map(|(name, tool)| registration(name, tool, None)),
                    );
                }
            }
            let mut model = file.clone();
            model.extend(api.clone());
            let mut seen: Vec<_> = names(&registered)
                .into_iter()
                .map(|(name, tools)| (name, tools.concat()))
                .collect();
            seen.sort();
            assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
            assert_eq!(
                registered.entries().keys().copied().collect::<Vec<_>>(),
                seen.iter()
                    .map(|(name, _)| name.as_str())
                    .collect::<Vec<_>>()
            );
        }
    }
}
