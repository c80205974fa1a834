//! The call values that explanations and details show, and the conditions on these values.

use serde_json::{Value, json};
use text::code;

use crate::evaluate::comparison::score::Judgement;
use crate::evaluate::comparison::value_path::ValuePath;

/// The conditions on calls, and the values of these calls.
#[derive(Default)]
pub(crate) struct ShownValues {
    pub(crate) details: Vec<Value>,
    texts: Vec<String>,
}

impl ShownValues {
    /// Adds the operators at a path of a call, each with its expected value. If explanations show
    /// values, also adds the actual value.
    pub(crate) fn add(
        &mut self,
        call_idx: usize,
        path: &ValuePath,
        operators: impl IntoIterator<Item = (String, Option<Value>)>,
        judgement: &Judgement<'_>,
    ) {
        let call = judgement.trajectory.tool_calls.get(call_idx);
        let call = call.filter(|_| judgement.explain.values);
        let actual = call.and_then(|call| judgement.explain.value(&path.json_in(call)?));
        for (operator, expected) in operators {
            let mut detail = json!({
                "call": call_idx + 1,
                "path": path.as_str(),
                "operator": operator,
            });
            for (key, value) in [
                ("expected", expected),
                ("actual", actual.clone().map(Value::from)),
            ] {
                if let Some(value) = value {
                    detail[key] = value;
                }
            }
            self.details.push(detail);
        }
        let text = actual.map(|text| format!("{} is {}", code(path.as_str()), code(&text)));
        self.texts
            .extend(text.filter(|text| !self.texts.contains(text)));
    }

    pub(crate) fn add_to(self, details: &mut Value, key: &str) {
        if !self.details.is_empty() {
            details[key] = self.details.into();
        }
    }

    /// Returns text such as "`args.amount` is `5000`, `args.to` is `"a"`", enclosed in `before` and
    /// `after`; empty if no value is shown.
    pub(crate) fn text(&self, before: &str, after: &str) -> String {
        if self.texts.is_empty() {
            String::new()
        } else {
            format!("{before}{}{after}", self.texts.join(", "))
        }
    }
}
