//! The properties of each field in Slinky's CRDs, read from the table that our own CRDs are compared with. The tests
//! derive from them objects that must be accepted or rejected, and the stored values.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

const TABLE: &str = include_str!("../../../../crates/api/tests/crd_facts.txt");

/// Fields whose pattern the webhook checks instead of the CRD, because its messages can suggest a fix. The webhook's
/// test rows cover them.
const LEFT_TO_THE_WEBHOOK: [&str; 2] = ["interval", "scrapeTimeout"];

/// The properties of one field.
#[derive(Debug, Clone)]
pub struct Field {
    kind: String,
    default: Option<Value>,
    choices: Vec<String>,
    minimum: Option<i64>,
    /// Properties without a value, such as `nullable`.
    marks: Vec<&'static str>,
}

impl Field {
    fn is(&self, mark: &str) -> bool {
        self.marks.contains(&mark)
    }
}

/// The fields of a kind's spec in Slinky, by path. `[]` means the items of a list.
pub struct Facts(BTreeMap<String, Field>);

/// A spec to create, and the expected result.
#[derive(Debug)]
pub struct Probe {
    pub what: String,
    pub spec: Value,
    pub expected: Expected,
}

#[derive(Debug)]
pub enum Expected {
    Refused,
    /// Accepted. The stored value at the path contains this value.
    Stored(String, Value),
    /// Accepted. Nothing is stored at the path.
    Absent(String),
}

/// Returns the lines of a section that describe Slinky's CRDs.
fn section(name: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let body = TABLE.split_once(&format!("[{name}]\n")).unwrap().1;
    body.lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .map(|line| line.split_once(' ').unwrap())
        .map(|(path, fact)| (path, fact.trim()))
}

fn read(fact: &str) -> Field {
    let (fact, map) = match (fact.find("of("), fact.rfind(')')) {
        (Some(open), Some(close)) => (format!("{}{}", &fact[..open], &fact[close + 1..]), true),
        _ => (fact.to_owned(), false),
    };
    let mut words = fact.split(' ').filter(|word| !word.is_empty());
    let mut field = Field {
        kind: words.next().unwrap().to_owned(),
        default: None,
        choices: Vec::new(),
        minimum: None,
        marks: map.then_some("map").into_iter().collect(),
    };
    for word in words {
        if let Some(default) = word.strip_prefix('=') {
            field.default = Some(serde_json::from_str(default).unwrap());
        } else if let Some(choices) = word.strip_prefix("enum(") {
            field.choices = choices
                .trim_end_matches(')')
                .split('|')
                .map(str::to_owned)
                .collect();
        } else if let Some(minimum) = word.strip_prefix("min=") {
            field.minimum = Some(minimum.parse().unwrap());
        }
        let marks = ["pattern", "nullable", "raw", "required"].into_iter();
        field
            .marks
            .extend(marks.filter(|mark| word.split('=').next() == Some(mark)));
    }
    field
}

fn expand(path: &str, fact: &str, facts: &mut BTreeMap<String, Field>) {
    let Some(shape) = fact.strip_prefix('@') else {
        facts.insert(path.to_owned(), read(fact));
        return;
    };
    let (shape, required) = shape.split_once(' ').unwrap_or((shape, ""));
    for (inner, fact) in section(&format!("@{shape}")) {
        if inner == "." {
            expand(path, &format!("{fact} {required}"), facts);
        } else {
            expand(&format!("{path}{inner}"), fact, facts);
        }
    }
}

impl Facts {
    pub fn of(kind: &str) -> Self {
        let mut facts = BTreeMap::new();
        for (path, fact) in section(kind).filter(|(path, _)| path.starts_with("spec.")) {
            expand(&path["spec.".len()..], fact, &mut facts);
        }
        Self(facts)
    }

    /// Returns the smallest valid value at a path.
    fn sample(&self, path: &str) -> Value {
        let field = &self.0[path];
        if field.is("map") {
            return json!({ "k": "1" });
        }
        match field.kind.as_str() {
            "object" if field.is("raw") => {
                json!({ "unknown": { "to": [1, "us"], "no": false, "zero": 0, "empty": "" } })
            }
            "object" => {
                let needed = self.children(path).filter(|(_, child)| child.is("required"));
                needed
                    .map(|(name, _)| (name.to_owned(), self.sample(&join(path, name))))
                    .collect::<Map<_, _>>()
                    .into()
            }
            "array" => json!([self.sample(&format!("{path}[]"))]),
            "string" => field.choices.first().map_or(json!("30s"), |choice| json!(choice)),
            "string:date-time" => json!("2027-01-01T00:00:00Z"),
            "int-or-string" => json!("10%"),
            "boolean" => json!(true),
            "any" => json!([]),
            _ => json!(field.minimum.unwrap_or(7)),
        }
    }

    fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (&'a str, &'a Field)> {
        self.0.iter().filter_map(move |(at, field)| {
            let name = at.strip_prefix(path)?.strip_prefix('.')?;
            (!name.contains(['.', '['])).then_some((name, field))
        })
    }

    /// Returns the base with the value at a path replaced, or removed if `None`. Creates missing parents with their
    /// required fields.
    fn with(&self, base: &Value, path: &str, value: Option<Value>) -> Value {
        let mut object = base.clone();
        let mut at = &mut object;
        let mut so_far = String::new();
        let steps: Vec<&str> = steps(path).collect();
        let (last, parents) = steps.split_last().unwrap();
        for step in parents {
            if *step == "[]" {
                so_far.push_str("[]");
                at = &mut at[0];
                continue;
            }
            so_far = join(&so_far, step);
            if at.get(step).is_none() {
                at[*step] = self.sample(&so_far);
            }
            at = &mut at[*step];
        }
        match (value, *last) {
            (Some(value), "[]") => *at = json!([value]),
            (Some(value), name) => at[name] = value,
            (None, name) => drop(at.as_object_mut().unwrap().remove(name)),
        }
        object
    }

    /// Returns all probes that follow from the facts, each a change of the valid base spec.
    pub fn probes(&self, base: &Value) -> Vec<Probe> {
        let mut probes = Vec::new();
        for (path, field) in &self.0 {
            let mut add = |what: &str, value: Option<Value>, expected: Expected| {
                let what = format!("{path}: {what}");
                let spec = self.with(base, path, value);
                probes.push(Probe { what, spec, expected });
            };
            let stored = |value: &Value| Expected::Stored(path.clone(), value.clone());
            let sample = self.sample(path);
            add("a value", Some(sample.clone()), stored(&sample));
            if let Some(wrong) = wrong_type(field) {
                add("a value of another type", Some(wrong), Expected::Refused);
            }
            for choice in &field.choices {
                add(choice, Some(json!(choice)), stored(&json!(choice)));
            }
            if !field.choices.is_empty() {
                add("no such choice", Some(json!("Sometimes")), Expected::Refused);
            }
            let by_webhook = LEFT_TO_THE_WEBHOOK.iter().any(|name| path.ends_with(name));
            if field.is("pattern") && !by_webhook {
                add(
                    "against the pattern",
                    Some(json!("two\nlines")),
                    Expected::Refused,
                );
            }
            if let Some(minimum) = field.minimum {
                add("too small", Some(json!(minimum - 1)), Expected::Refused);
            }
            if field.kind == "object" && !field.is("map") {
                let mut more = sample.clone();
                more["nobodyKnows"] = json!({ "deep": [1] });
                let inside = format!("{path}.nobodyKnows");
                let expected = if field.is("raw") {
                    Expected::Stored(inside, json!({ "deep": [1] }))
                } else {
                    Expected::Absent(inside)
                };
                add("a field that nobody knows", Some(more), expected);
            }
            // Only fields can be absent or null, not items of a list.
            if path.ends_with("[]") {
                continue;
            }
            let absence = match &field.default {
                Some(default) => stored(default),
                None if field.is("required") => Expected::Refused,
                None => Expected::Absent(path.clone()),
            };
            add("absent", None, absence);
            let null = match &field.default {
                _ if field.is("nullable") => stored(&Value::Null),
                Some(default) => stored(default),
                None if field.is("required") => Expected::Refused,
                None => Expected::Absent(path.clone()),
            };
            add("null", Some(Value::Null), null);
        }
        probes
    }
}

fn wrong_type(field: &Field) -> Option<Value> {
    match field.kind.as_str() {
        "any" => None,
        kind if kind.starts_with("string") => Some(json!(5)),
        "int-or-string" => Some(json!(true)),
        _ => Some(json!("text")),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Splits `a.b[].c` into `a`, `b`, `[]`, `c`.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').flat_map(|word| {
        let name = word.trim_end_matches("[]");
        std::iter::once(name).chain((name.len() < word.len()).then_some("[]"))
    })
}

/// Returns the value at a path. `[]` selects the first item of a list.
pub fn at<'a>(spec: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path).try_fold(spec, |value, step| match step {
        "[]" => value.get(0),
        name => value.get(name),
    })
}

/// Returns whether the stored value contains everything that was written. It may contain more, because of defaults.
pub fn holds(stored: &Value, written: &Value) -> bool {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => written
            .iter()
            .all(|(name, value)| stored.get(name).is_some_and(|stored| holds(stored, value))),
        (Value::Array(stored), Value::Array(written)) => {
            stored.len() == written.len()
                && stored
                    .iter()
                    .zip(written)
                    .all(|(stored, written)| holds(stored, written))
        }
        _ => stored == written,
    }
}
