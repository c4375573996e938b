//! A node's state: one base state and any number of flags, some of which this client may not know yet.

use std::fmt;

/// The base state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum NodeBase {
    /// Slurm does not know the state, or this client does not know Slurm's word for it.
    #[default]
    Unknown,
    /// Out of use.
    Down,
    /// No job.
    Idle,
    /// Jobs use all of it.
    Allocated,
    /// Broken.
    Error,
    /// Jobs use some of it.
    Mixed,
    /// Defined for later use.
    Future,
}

/// A flag in addition to the base state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names are Slurm's")]
pub enum NodeFlag {
    Blocked,
    Cloud,
    Completing,
    Drain,
    DynamicFuture,
    DynamicNorm,
    External,
    Fail,
    Invalid,
    InvalidReg,
    Maintenance,
    NotResponding,
    Planned,
    PowerDown,
    PowerDrain,
    PowerUp,
    PoweredDown,
    PoweringDown,
    PoweringUp,
    RebootCanceled,
    RebootIssued,
    RebootRequested,
    Reserved,
    Resume,
    Undrain,
}

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeState {
    /// The base state.
    pub base: NodeBase,
    /// One bit per flag.
    flags: u32,
    /// Flags that this client does not know, as Slurm writes them.
    others: Option<Box<[Box<str>]>>,
}

impl NodeState {
    /// Parses Slurm's words, in any order.
    pub fn read<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut state = Self::default();
        let mut others = Vec::new();
        for word in words {
            if let Ok(base) = word.parse() {
                state.base = base;
            } else if let Ok(flag) = word.parse::<NodeFlag>() {
                state.flags |= flag.bit();
            } else {
                others.push(word.into());
            }
        }
        state.others = (!others.is_empty()).then(|| others.into());
        state
    }

    /// Reports whether the flag is set.
    pub fn has(&self, flag: NodeFlag) -> bool {
        self.flags & flag.bit() != 0
    }

    /// Returns the flags that this client does not know.
    pub fn others(&self) -> Vec<&str> {
        self.others.iter().flatten().map(AsRef::as_ref).collect()
    }

    /// Returns the flags that this client knows.
    pub fn flags(&self) -> impl Iterator<Item = NodeFlag> {
        <NodeFlag as strum::IntoEnumIterator>::iter().filter(|flag| self.has(*flag))
    }

    /// Reports whether the node accepts no new jobs and runs none. A drained node that is down counts, because no job
    /// runs there.
    pub fn is_drained(&self) -> bool {
        self.has(NodeFlag::Drain) && !self.is_busy()
    }

    /// Reports whether jobs use the node or are being cleaned up there. An unknown state counts as busy: it must not be
    /// mistaken for idle.
    pub fn is_busy(&self) -> bool {
        match self.base {
            NodeBase::Allocated | NodeBase::Mixed | NodeBase::Unknown | NodeBase::Error => true,
            NodeBase::Down | NodeBase::Idle | NodeBase::Future => self.has(NodeFlag::Completing),
        }
    }

    /// Reports whether slurmd responds.
    pub fn is_responding(&self) -> bool {
        !self.has(NodeFlag::NotResponding)
    }

    /// Reports whether the node is ready for jobs.
    pub fn is_available(&self) -> bool {
        let held_back = [
            NodeFlag::Drain,
            NodeFlag::Fail,
            NodeFlag::NotResponding,
            NodeFlag::PoweredDown,
            NodeFlag::PoweringDown,
            NodeFlag::PoweringUp,
            NodeFlag::InvalidReg,
            NodeFlag::RebootIssued,
        ];
        matches!(self.base, NodeBase::Idle | NodeBase::Allocated | NodeBase::Mixed)
            && !held_back.iter().any(|flag| self.has(*flag))
    }
}

impl NodeFlag {
    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Formats the state like Slurm's commands: `IDLE+DRAIN`.
impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.into())?;
        for flag in self.flags() {
            write!(f, "+{}", <&str>::from(flag))?;
        }
        self.others().iter().try_for_each(|other| write!(f, "+{other}"))
    }
}

impl fmt::Debug for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use strum::IntoEnumIterator as _;

    fn state(words: &str) -> NodeState {
        NodeState::read(words.split('+').filter(|w| !w.is_empty()))
    }

    #[rstest]
    #[case("IDLE", false, false, true)]
    #[case("IDLE+DRAIN", true, false, false)]
    #[case("DRAIN+IDLE", true, false, false)]
    #[case("MIXED+DRAIN", false, true, false)]
    #[case("IDLE+COMPLETING+DRAIN", false, true, false)]
    #[case("DOWN+DRAIN+NOT_RESPONDING", true, false, false)]
    #[case("ALLOCATED", false, true, true)]
    #[case("DRAIN", false, true, false)]
    #[case("STRANGE+DRAIN", false, true, false)]
    #[case("IDLE+NOT_RESPONDING", false, false, false)]
    #[case("", false, true, false)]
    fn states_are_understood(
        #[case] words: &str,
        #[case] drained: bool,
        #[case] busy: bool,
        #[case] available: bool,
    ) {
        let state = state(words);
        assert_eq!(
            (state.is_drained(), state.is_busy(), state.is_available()),
            (drained, busy, available)
        );
    }

    #[test]
    fn flags_fit_and_are_written_as_slurm_writes_them() {
        assert!(NodeFlag::iter().count() <= 32);
        assert_eq!(
            state("DRAIN+IDLE+DYNAMIC_NORM+NEW").to_string(),
            "IDLE+DRAIN+DYNAMIC_NORM+NEW"
        );
    }
}
