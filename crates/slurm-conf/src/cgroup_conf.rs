//! cgroup.conf.

use std::collections::BTreeMap;

use crate::catalogue::File;
use crate::merge::{Error, Piece, Rendered, merge};
use crate::syntax::parse;

/// How slurmd uses control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupPlugin {
    /// The unified hierarchy (cgroup v2), without systemd.
    #[default]
    V2,
    /// The legacy hierarchies (cgroup v1).
    V1,
    /// Control groups are not used.
    Disabled,
}

/// Writes cgroup.conf. The user's settings take precedence.
pub fn render(plugin: CgroupPlugin, extra_conf: &str) -> Result<Rendered, Error> {
    let user = parse(File::Cgroup, extra_conf, &BTreeMap::new()).map_err(Error::Unreadable)?;
    let pieces = match plugin {
        CgroupPlugin::V2 => {
            vec![
                Piece::default("CgroupPlugin", "cgroup/v2"),
                Piece::default("IgnoreSystemd", "yes"),
            ]
        }
        CgroupPlugin::V1 => vec![Piece::default("CgroupPlugin", "cgroup/v1")],
        CgroupPlugin::Disabled => vec![Piece::default("CgroupPlugin", "disabled")],
    };
    merge(File::Cgroup, pieces, &user, &[])
}
