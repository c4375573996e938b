//! Container images, built without an engine.

/// The image of a pod's first container.
pub const PAUSE: &str = "keelson.dev/pause:1";
/// The image of the cluster's DNS server.
pub const COREDNS: &str = "keelson.dev/coredns:1";
