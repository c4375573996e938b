//! Evaluates network policies by the rules of the API, for given pods and policies. It replaces a network plug-in that
//! enforces policies, which the test cluster does not have.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The pods and policies of a cluster, as returned by the API server.
#[derive(Debug)]
pub struct Network {
    /// The network policies.
    pub policies: Vec<Value>,
    /// The pods.
    pub pods: Vec<Value>,
}

/// The two directions of traffic that a policy can restrict.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn rules(self, policy: &Value) -> &Value {
        match self {
            Self::Ingress => at(policy, "/spec/ingress"),
            Self::Egress => at(policy, "/spec/egress"),
        }
    }

    fn peers(self, rule: &Value) -> Option<&Vec<Value>> {
        match self {
            Self::Ingress => at(rule, "/from"),
            Self::Egress => at(rule, "/to"),
        }
        .as_array()
    }

    /// Returns whether a policy restricts this direction. Without policyTypes, a policy restricts ingress, and egress
    /// if it has egress rules.
    fn restricted_by(self, policy: &Value) -> bool {
        match (at(policy, "/spec/policyTypes").as_array(), self) {
            (Some(types), Self::Ingress) => types.contains(&json!("Ingress")),
            (Some(types), Self::Egress) => types.contains(&json!("Egress")),
            (None, Self::Ingress) => true,
            (None, Self::Egress) => !at(policy, "/spec/egress").is_null(),
        }
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
enum Peer<'a> {
    Pod(&'a Value),
    Address(IpAddr),
}

impl Network {
    /// Returns the pod in a namespace whose name has this prefix.
    pub fn pod(&self, namespace: &str, prefix: &str) -> Result<&Value> {
        self.pods
            .iter()
            .find(|pod| namespace_of(pod) == namespace && name_of(pod).starts_with(prefix))
            .with_context(|| format!("no pod {prefix}… in {namespace}"))
    }

    /// Returns whether a pod may open a TCP connection to a port of another pod.
    pub fn lets(&self, from: &Value, to: &Value, port: u64) -> Result<bool> {
        Ok(self.permits(Direction::Egress, from, Peer::Pod(to), port)?
            && self.permits(Direction::Ingress, to, Peer::Pod(from), port)?)
    }

    /// Returns whether a pod may open a TCP connection to an address outside the cluster's pods.
    pub fn lets_out(&self, from: &Value, address: &str, port: u64) -> Result<bool> {
        let address = address
            .parse()
            .with_context(|| format!("{address} is no address"))?;
        self.permits(Direction::Egress, from, Peer::Address(address), port)
    }

    fn permits(&self, direction: Direction, pod: &Value, peer: Peer, port: u64) -> Result<bool> {
        let mut closed = false;
        for policy in &self.policies {
            let concerned = namespace_of(policy) == namespace_of(pod)
                && direction.restricted_by(policy)
                && selects(at(policy, "/spec/podSelector"), at(pod, "/metadata/labels"))?;
            if !concerned {
                continue;
            }
            closed = true;
            let server = match (direction, peer) {
                (Direction::Ingress, _) => pod,
                (Direction::Egress, Peer::Pod(to)) => to,
                (Direction::Egress, Peer::Address(_)) => &Value::Null,
            };
            for rule in items(direction.rules(policy)) {
                if lets_port(rule, server, port) && lets_peer(direction, rule, peer, namespace_of(policy))? {
                    return Ok(true);
                }
            }
        }
        Ok(!closed)
    }
}

/// Returns the value at a JSON pointer, or null.
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

fn namespace_of(object: &Value) -> &str {
    at(object, "/metadata/namespace").as_str().unwrap_or_default()
}

fn name_of(object: &Value) -> &str {
    at(object, "/metadata/name").as_str().unwrap_or_default()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn lets_port(rule: &Value, to: &Value, port: u64) -> bool {
    let Some(ports) = at(rule, "/ports").as_array() else {
        return true;
    };
    let tcp = |wanted: &&Value| matches!(at(wanted, "/protocol").as_str(), None | Some("TCP"));
    ports.iter().filter(tcp).any(|wanted| match at(wanted, "/port") {
        Value::Number(number) => number.as_u64() == Some(port),
        Value::String(name) => items(at(to, "/spec/containers"))
            .flat_map(|container| items(at(container, "/ports")))
            .any(|known| {
                at(known, "/name") == name.as_str() && at(known, "/containerPort").as_u64() == Some(port)
            }),
        _ => true,
    })
}

fn lets_peer(direction: Direction, rule: &Value, peer: Peer, here: &str) -> Result<bool> {
    let Some(peers) = direction.peers(rule) else {
        return Ok(true);
    };
    for wanted in peers {
        let block = at(wanted, "/ipBlock");
        let matches = match peer {
            Peer::Address(address) if !block.is_null() => in_block(block, address)?,
            Peer::Address(_) => false,
            // An ipBlock selects addresses outside the cluster; no test has a pod with an address in a block.
            Peer::Pod(_) if !block.is_null() => false,
            Peer::Pod(pod) => is_selected(wanted, pod, here)?,
        };
        if matches {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_selected(peer: &Value, pod: &Value, here: &str) -> Result<bool> {
    // Kubernetes labels each namespace with its name; no test adds other labels.
    let namespace = json!({ "kubernetes.io/metadata.name": namespace_of(pod) });
    let place = match at(peer, "/namespaceSelector") {
        Value::Null => namespace_of(pod) == here,
        selector => selects(selector, &namespace)?,
    };
    Ok(place && selects(at(peer, "/podSelector"), at(pod, "/metadata/labels"))?)
}

fn in_block(block: &Value, address: IpAddr) -> Result<bool> {
    let within = |cidr: &Value| contains(cidr.as_str().context("a block without cidr")?, address);
    if !within(at(block, "/cidr"))? {
        return Ok(false);
    }
    for except in items(at(block, "/except")) {
        if within(except)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a CIDR block such as `10.0.0.0/8` or `::/0` contains an address.
fn contains(cidr: &str, address: IpAddr) -> Result<bool> {
    let (network, length) = cidr
        .split_once('/')
        .with_context(|| format!("{cidr} is no block"))?;
    let (network, length): (IpAddr, u32) = (network.parse()?, length.parse()?);
    let (left, right, width) = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits().into(), address.to_bits().into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return Ok(false),
    };
    let differing: u128 = left ^ right;
    let host_bits = width - length;
    Ok(differing.checked_shr(host_bits).unwrap_or(0) == 0)
}

/// Returns whether a label selector selects these labels. An empty selector selects everything.
fn selects(selector: &Value, labels: &Value) -> Result<bool> {
    for (key, value) in at(selector, "/matchLabels").as_object().into_iter().flatten() {
        if labels.get(key) != Some(value) {
            return Ok(false);
        }
    }
    for expression in items(at(selector, "/matchExpressions")) {
        let key = at(expression, "/key").as_str().unwrap_or_default();
        let found = labels.get(key).unwrap_or(&Value::Null);
        let named = items(at(expression, "/values")).any(|value| value == found);
        let holds = match at(expression, "/operator").as_str().unwrap_or_default() {
            "In" => named,
            "NotIn" => !named,
            "Exists" => !found.is_null(),
            "DoesNotExist" => found.is_null(),
            other => bail!("unknown operator {other:?}"),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> Value {
        json!({
            "metadata": { "namespace": namespace, "name": name, "labels": { "app": name } },
            "spec": { "containers": [{ "ports": [{ "name": "main", "containerPort": 80 }] }] },
        })
    }

    fn network(ingress: &Value) -> Network {
        Network {
            policies: vec![json!({
                "metadata": { "namespace": "here", "name": "closed" },
                "spec": { "podSelector": { "matchLabels": { "app": "server" } }, "ingress": ingress },
            })],
            pods: Vec::new(),
        }
    }

    #[test]
    fn a_pod_that_no_policy_selects_is_open_and_a_selected_one_is_closed() -> Result<()> {
        let network = network(&json!([]));
        let (server, client) = (pod("here", "server"), pod("here", "client"));
        assert!(network.lets(&server, &client, 80)?);
        assert!(!network.lets(&client, &server, 80)?);
        assert!(network.lets(&client, &pod("there", "server"), 80)?);
        Ok(())
    }

    #[test]
    fn a_rule_lets_its_peers_in_on_its_ports() -> Result<()> {
        let network = network(&json!([
            { "ports": [{ "port": "main" }], "from": [{ "podSelector": { "matchLabels": { "app": "client" } } }] },
            { "ports": [{ "port": 81 }], "from": [{
                "namespaceSelector": { "matchExpressions": [
                    { "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["there"] }] },
                "podSelector": { "matchLabels": { "app": "client" } } }] },
            { "ports": [{ "port": 82 }] },
        ]));
        let server = pod("here", "server");
        let lets = |from: Value, port| network.lets(&from, &server, port);
        assert!(lets(pod("here", "client"), 80)?);
        assert!(!lets(pod("here", "client"), 81)?);
        assert!(!lets(pod("here", "stranger"), 80)?);
        assert!(!lets(pod("there", "client"), 80)?);
        assert!(lets(pod("there", "client"), 81)?);
        assert!(!lets(pod("elsewhere", "client"), 81)?);
        assert!(lets(pod("elsewhere", "stranger"), 82)?);
        Ok(())
    }

    #[test]
    fn egress_is_judged_by_the_sender_and_only_where_a_policy_is_about_it() -> Result<()> {
        let sender = json!({ "matchLabels": { "app": "sender" } });
        let network = |types: Value| Network {
            policies: vec![json!({
                "metadata": { "namespace": "here", "name": "out" },
                "spec": { "podSelector": sender, "policyTypes": types, "ingress": [{}], "egress": [
                    { "to": [{ "podSelector": { "matchLabels": { "app": "friend" } } }] },
                    { "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"] } }], "ports": [{ "port": 443 }] },
                    { "to": [{ "ipBlock": { "cidr": "169.254.20.10/32" } }], "ports": [{ "port": 53, "protocol": "UDP" }] },
                ] },
            })],
            pods: Vec::new(),
        };
        let closed = network(json!(["Ingress", "Egress"]));
        let sender = pod("here", "sender");
        assert!(closed.lets(&sender, &pod("here", "friend"), 9)?);
        assert!(!closed.lets(&sender, &pod("here", "stranger"), 9)?);
        assert!(closed.lets(&pod("here", "stranger"), &sender, 9)?);
        assert!(closed.lets_out(&sender, "192.0.2.1", 443)?);
        assert!(!closed.lets_out(&sender, "192.0.2.1", 80)?);
        assert!(!closed.lets_out(&sender, "169.254.169.254", 443)?);
        assert!(!closed.lets_out(&sender, "169.254.20.10", 53)?, "UDP only");
        assert!(!closed.lets_out(&sender, "2001:db8::1", 443)?);
        let open = network(json!(["Ingress"]));
        assert!(open.lets_out(&sender, "169.254.169.254", 443)?);
        Ok(())
    }

    #[test]
    fn a_block_contains_what_shares_its_first_bits() -> Result<()> {
        for (cidr, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("192.0.2.7/32", "192.0.2.7", true),
            ("192.0.2.7/32", "192.0.2.6", false),
            ("::/0", "fd00:ec2::254", true),
            ("fe80::/10", "febf::1", true),
            ("fe80::/10", "fec0::1", false),
            ("0.0.0.0/0", "::1", false),
        ] {
            assert_eq!(contains(cidr, address.parse()?)?, expected, "{address} in {cidr}");
        }
        Ok(())
    }
}
