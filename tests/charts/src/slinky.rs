//! Tests that our charts support every value of Slinky's charts. Each leaf value is set alone and rendered, and the
//! objects are compared with a table of expectations.
//!
//! The tables are `tests/charts/slinky/*.yaml`. The `.leaves` file next to each lists the leaf values of Slinky's
//! chart. A case must pass with the value and fail without it, because a value that changes nothing is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Case, compare, objects_of};

/// Prefixes of default values, and the prefixes that set the same values for a single NodeSet or LoginSet.
const SETS: [(&str, &str); 2] = [
    ("nodesetDefaults.", "nodesets.cpu."),
    ("loginsetDefaults.", "loginsets.users."),
];

/// The values of one of Slinky's charts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaves {
    chart: String,
    base: Value,
    cases: Vec<Leaf>,
}

/// One value and its expected effect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Leaf {
    value: String,
    #[serde(default)]
    with: Value,
    set: Value,
    #[serde(default)]
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    #[serde(default)]
    absent: Vec<String>,
    /// Arguments that the first container of a workload must have, in any order.
    #[serde(default)]
    args: BTreeMap<String, Vec<String>>,
    /// Text of the error that the value must cause.
    fails: Option<String>,
    /// Why Slinky's chart renders a different result.
    differs: Option<String>,
}

impl Leaves {
    /// Reads a table. It must have exactly one case for each leaf in the `.leaves` file.
    pub fn read(path: &Path) -> Result<Self> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let table: Self = serde_saphyr::from_str(&read(path)?)
            .with_context(|| format!("{} is not a table of leaves", path.display()))?;
        let listed = read(&path.with_extension("leaves"))?;
        let listed: BTreeSet<&str> = listed.lines().collect();
        let covered: BTreeSet<&str> = table.cases.iter().map(|leaf| leaf.value.as_str()).collect();
        let missing: Vec<_> = listed.difference(&covered).collect();
        let unknown: Vec<_> = covered.difference(&listed).collect();
        ensure!(
            missing.is_empty() && unknown.is_empty(),
            "leaves without a case: {missing:?}; cases without a leaf: {unknown:?}"
        );
        Ok(table)
    }

    /// Runs every case and returns a line for each failure.
    pub fn run(&self, helm: &Path) -> Vec<String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let cases: Vec<Leaf> = self.cases.iter().flat_map(Leaf::variants).collect();
        let share = cases.len().div_ceil(threads).max(1);
        let renders = Renders::default();
        std::thread::scope(|scope| {
            let workers: Vec<_> = cases
                .chunks(share)
                .map(|cases| {
                    scope.spawn(|| {
                        cases
                            .iter()
                            .filter_map(|leaf| self.fault(helm, leaf, &renders))
                            .collect()
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| {
                    worker
                        .join()
                        .unwrap_or_else(|_| vec!["a check panicked".to_owned()])
                })
                .collect()
        })
    }

    fn fault(&self, helm: &Path, leaf: &Leaf, renders: &Renders) -> Option<String> {
        self.check(helm, leaf, renders)
            .err()
            .map(|error| format!("{}: {error:#}", leaf.value))
    }

    fn check(&self, helm: &Path, leaf: &Leaf, renders: &Renders) -> Result<()> {
        let mut without = self.base.clone();
        lay_over(&mut without, &leaf.with);
        let mut with = without.clone();
        lay_over(&mut with, &nested(&leaf.value, leaf.set.clone()));
        let case = Self::case(leaf);
        let rendered = objects_of(helm, &self.chart, &with);
        if let Some(expected) = &leaf.fails {
            ensure!(
                leaf.differs.is_some(),
                "is refused, and `differs` does not say why"
            );
            let Err(error) = rendered else {
                bail!("rendered, but should fail with {expected:?}")
            };
            let error = format!("{error:#}");
            ensure!(
                error.contains(expected),
                "fails with {error:?}, not with {expected:?}"
            );
            return Ok(());
        }
        let holds = |found: &BTreeMap<String, Value>| {
            compare(found, &case).and_then(|()| has_args(found, &leaf.args))
        };
        holds(&rendered?)?;
        if leaf.objects.is_empty() && leaf.absent.is_empty() && leaf.args.is_empty() {
            ensure!(
                leaf.differs.is_some(),
                "changes nothing, and `differs` does not say why"
            );
        } else if holds(&renders.get(helm, &self.chart, &without)?).is_ok() {
            bail!("the same is rendered without it");
        }
        Ok(())
    }

    fn case(leaf: &Leaf) -> Case {
        Case {
            name: leaf.value.clone(),
            objects: leaf.objects.clone(),
            absent: leaf.absent.clone(),
            ..Case::default()
        }
    }
}

fn has_args(found: &BTreeMap<String, Value>, wanted: &BTreeMap<String, Vec<String>>) -> Result<()> {
    for (id, wanted) in wanted {
        let object = found.get(id).with_context(|| format!("{id} is not rendered"))?;
        let given = object
            .pointer("/spec/template/spec/containers/0/args")
            .and_then(Value::as_array)
            .with_context(|| format!("{id} has no arguments"))?;
        for arg in wanted {
            ensure!(
                given.contains(&json!(arg)),
                "{id} does not have {arg}, but {given:?}"
            );
        }
    }
    Ok(())
}

/// A cache of renders that several cases share.
#[derive(Debug, Default)]
struct Renders(Mutex<BTreeMap<String, BTreeMap<String, Value>>>);

impl Renders {
    fn get(&self, helm: &Path, chart: &str, values: &Value) -> Result<BTreeMap<String, Value>> {
        let key = values.to_string();
        let known = || {
            self.0
                .lock()
                .map_err(|_| anyhow::anyhow!("another check panicked"))
        };
        if let Some(found) = known()?.get(&key) {
            return Ok(found.clone());
        }
        let rendered = objects_of(helm, chart, values)?;
        known()?.insert(key, rendered.clone());
        Ok(rendered)
    }
}

impl Leaf {
    /// Returns this case and, for a default value, the same case with the value set for a single NodeSet or LoginSet.
    fn variants(&self) -> Vec<Self> {
        let in_set = SETS.iter().find_map(|(defaults, set)| {
            let rest = self.value.strip_prefix(defaults)?;
            Some(Self {
                value: format!("{set}{rest}"),
                ..self.clone()
            })
        });
        std::iter::once(self.clone()).chain(in_set).collect()
    }
}

/// Converts `a.b` and a value to `{"a": {"b": value}}`. The only key of Slinky's values with a dot in it is a node
/// label.
fn nested(path: &str, value: Value) -> Value {
    const LABEL: &str = ".kubernetes.io/os";
    let (path, value) = match path.strip_suffix(LABEL) {
        Some(path) => (path, json!({ LABEL.trim_start_matches('.'): value })),
        None => (path, value),
    };
    path.rsplit('.').fold(value, |inner, key| json!({ key: inner }))
}

/// Merges maps. Any other value replaces the base.
fn lay_over(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_nested_maps_and_a_label_stays_one_key() {
        assert_eq!(nested("a.b", json!(1)), json!({ "a": { "b": 1 } }));
        assert_eq!(
            nested("a.nodeSelector.kubernetes.io/os", json!("x")),
            json!({ "a": { "nodeSelector": { "kubernetes.io/os": "x" } } })
        );
    }

    #[test]
    fn a_value_of_the_defaults_is_also_tried_in_a_set() {
        let leaf: Leaf =
            serde_json::from_value(json!({ "value": "nodesetDefaults.replicas", "set": 3 })).unwrap();
        let values: Vec<String> = leaf.variants().into_iter().map(|leaf| leaf.value).collect();
        assert_eq!(values, ["nodesetDefaults.replicas", "nodesets.cpu.replicas"]);
    }
}
