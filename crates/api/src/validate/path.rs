//! Field paths: printed as users write them, and resolved in JSON.

use std::fmt;

use serde_json::Value;

/// A field path such as `spec.template.spec.containers[0].name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Path(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Segment {
    Field(String),
    Index(usize),
}

impl Path {
    /// `spec`
    pub fn spec() -> Self {
        Self::default().field("spec")
    }

    /// The field of this object.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        self.with(Segment::Field(name.to_owned()))
    }

    /// The element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// Appends a path in serde's notation, `a.b[3].c`.
    #[must_use]
    pub(crate) fn join_serde(&self, path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment as Serde;
        path.iter().fold(self.clone(), |at, segment| match segment {
            Serde::Seq { index } => at.index(*index),
            Serde::Map { key } => at.field(key),
            Serde::Enum { variant } => at.field(variant),
            Serde::Unknown => at,
        })
    }

    /// Appends the path of an unknown field.
    #[must_use]
    pub(crate) fn join_ignored(&self, path: &serde_ignored::Path<'_>) -> Self {
        use serde_ignored::Path as Ignored;
        match path {
            Ignored::Root => self.clone(),
            Ignored::Seq { parent, index } => self.join_ignored(parent).index(*index),
            Ignored::Map { parent, key } => self.join_ignored(parent).field(key),
            Ignored::Some { parent }
            | Ignored::NewtypeStruct { parent }
            | Ignored::NewtypeVariant { parent } => self.join_ignored(parent),
        }
    }

    /// This path with `to` in place of `from`, if it lies inside `from`.
    #[must_use]
    pub fn moved(&self, from: &Self, to: &Self) -> Option<Self> {
        let inner = self.0.strip_prefix(from.0.as_slice())?;
        Some(Self([to.0.as_slice(), inner].concat()))
    }

    /// Whether this path equals `outer` or lies inside it.
    pub fn is_within(&self, outer: &Self) -> bool {
        self.0.starts_with(&outer.0)
    }

    /// The value at this path.
    pub fn find<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(object, |value, segment| match segment {
            Segment::Field(name) => value.get(name),
            Segment::Index(index) => value.get(index),
        })
    }

    fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Field(name) if name.contains(['.', '/']) => write!(f, "[{name}]")?,
                Segment::Field(name) if position == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}
