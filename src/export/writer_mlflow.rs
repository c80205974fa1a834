//! A score in, an assessment of MLflow out. Pure.
//!
//! An assessment keeps the id that its creator gives it, so it is updated under ours (`PATCH`), and
//! created (`POST`) where there is none; where both say 404, MLflow does not know the trace yet.
//! MLflow names a trace that came over OTLP `tr-` and its id.

use serde_json::{Value, json};

use super::writer::{Score, Target, post};

pub(super) fn call(score: &Score<'_>, now_unix_nanos: u64) -> (Vec<Target>, Value) {
    let trace_id = format!("tr-{}", score.trace_id);
    let id = format!("a-{}", score.key);
    let assessments = format!("/api/3.0/mlflow/traces/{trace_id}/assessments");
    let feedback = match score.value {
        Some(value) => json!({ "value": value }),
        // An assessment without a value has the reason in its place.
        None => {
            json!({ "error": { "error_code": score.label, "error_message": score.explanation } })
        }
    };
    let metadata = score.metadata.iter().map(|(key, value)| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        (format!("spanscore.{key}"), json!(text))
    });
    let now = rfc3339(now_unix_nanos);
    let body = json!({
        "assessment": {
            "assessment_id": id,
            "assessment_name": score.name,
            "trace_id": trace_id,
            "span_id": score.span_id.to_string(),
            "source": { "source_type": "CODE", "source_id": "spanscore" },
            "create_time": now,
            "last_update_time": now,
            "feedback": feedback,
            "rationale": score.explanation,
            "metadata": metadata.collect::<serde_json::Map<_, _>>(),
            "valid": true,
        },
        "update_mask": "feedback,rationale,metadata",
    });
    (
        vec![
            Target {
                method: "PATCH",
                path: format!("{assessments}/{id}"),
            },
            post(assessments),
        ],
        body,
    )
}

/// Unix nanoseconds as `2026-11-21T20:12:37Z`, which is all that is asked for here.
fn rfc3339(unix_nanos: u64) -> String {
    let secs = unix_nanos / 1_000_000_000;
    let (days, second) = (secs / 86_400, secs % 86_400);
    // The civil calendar in eras of 400 years that begin on a first of March, after Howard
    // Hinnant's `civil_from_days`.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    /// Expected by `date -u -d @SECONDS +%FT%TZ`.
    #[test]
    fn times_are_those_of_an_independent_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_292_000, "2026-11-21T20:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
        ];
        for (secs, text) in cases {
            assert_eq!(rfc3339(secs * 1_000_000_000 + 7), text);
        }
    }
}
