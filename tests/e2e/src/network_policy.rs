//! What network policies let through, by the rules of their API. The test cluster's network does not enforce them, so tests
//! ask this instead, about pods and policies that really are there.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The pods and policies of a cluster, as the API server gives them.
#[derive(Debug)]
pub struct Network {
    /// The network policies.
    pub policies: Vec<Value>,
    /// Pods.
    pub pods: Vec<Value>,
}

impl Network {
    /// The pod of a namespace whose name begins so.
    pub fn pod(&self, namespace: &str, prefix: &str) -> Result<&Value> {
        self.pods
            .iter()
            .find(|pod| namespace_of(pod) == namespace && name_of(pod).starts_with(prefix))
            .with_context(|| format!("no pod {prefix}… in {namespace}"))
    }

    /// Whether a pod may open a connection to a port of another.
    pub fn lets(&self, from: &Value, to: &Value, port: u64) -> Result<bool> {
        let mut closed = false;
        for policy in &self.policies {
            let concerned = namespace_of(policy) == namespace_of(to)
                && selects(at(policy, "/spec/podSelector"), at(to, "/metadata/labels"))?;
            if !concerned {
                continue;
            }
            closed = true;
            for rule in items(at(policy, "/spec/ingress")) {
                if lets_port(rule, to, port) && lets_peer(rule, from, namespace_of(policy))? {
                    return Ok(true);
                }
            }
        }
        Ok(!closed)
    }
}

/// What is at this place, or null.
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
    ports.iter().any(|wanted| match at(wanted, "/port") {
        Value::Number(number) => number.as_u64() == Some(port),
        Value::String(name) => items(at(to, "/spec/containers"))
            .flat_map(|container| items(at(container, "/ports")))
            .any(|known| {
                at(known, "/name") == name.as_str() && at(known, "/containerPort").as_u64() == Some(port)
            }),
        _ => true,
    })
}

fn lets_peer(rule: &Value, from: &Value, here: &str) -> Result<bool> {
    let Some(peers) = at(rule, "/from").as_array() else {
        return Ok(true);
    };
    for peer in peers {
        if !at(peer, "/ipBlock").is_null() {
            bail!("addresses are not looked at: {peer}");
        }
        // A namespace carries its name as a label; no test gives it another.
        let namespace = serde_json::json!({ "kubernetes.io/metadata.name": namespace_of(from) });
        let place = match at(peer, "/namespaceSelector") {
            Value::Null => namespace_of(from) == here,
            selector => selects(selector, &namespace)?,
        };
        if place && selects(at(peer, "/podSelector"), at(from, "/metadata/labels"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a label selector selects these labels; an empty one selects all.
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

/// One line of `/proc/net/tcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// This side's port.
    pub port: u64,
    /// The other side's address and port.
    pub remote: (String, u64),
    /// Whether it waits for connections, or is one.
    pub listens: bool,
}

/// The sockets that listen or are connected.
pub fn sockets(proc_net_tcp: &str) -> Vec<Socket> {
    proc_net_tcp
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (_, port) = address(words.next()?)?;
            let remote = address(words.next()?)?;
            let listens = match words.next()? {
                "0A" => true,
                "01" => false,
                _ => return None,
            };
            Some(Socket {
                port,
                remote,
                listens,
            })
        })
        .collect()
}

/// `0100007F:1AA1`: the address in the machine's byte order.
fn address(text: &str) -> Option<(String, u64)> {
    let (address, port) = text.split_once(':')?;
    let address = u32::from_str_radix(address, 16).ok()?.swap_bytes();
    let port = u64::from_str_radix(port, 16).ok()?;
    Some((std::net::Ipv4Addr::from(address).to_string(), port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn sockets_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 00000000:1AA1 00000000:0000 0A 0\n\
                     1: 0502F40A:1AA1 0702F40A:C350 01 0\n\
                     2: 0502F40A:1AA1 0702F40A:C351 06 0\n";
        let expected = [("0.0.0.0", 0, true), ("10.244.2.7", 50000, false)];
        let expected = expected.map(|(address, port, listens)| Socket {
            port: 6817,
            remote: (address.to_owned(), port),
            listens,
        });
        assert_eq!(sockets(table), expected);
    }
}
