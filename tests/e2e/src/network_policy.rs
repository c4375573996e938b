//! The open connections of pods, for comparison with the network policy evaluator.

pub use chart_tests::network_policy::Network;

/// One line of `/proc/net/tcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// The local port.
    pub port: u64,
    /// The remote address and port.
    pub remote: (String, u64),
    /// Whether the socket listens. Otherwise it is connected.
    pub listens: bool,
}

/// Returns the sockets that listen or are connected.
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

/// Parses an address such as `0100007F:1AA1`. The IP address is in little-endian byte order.
fn address(text: &str) -> Option<(String, u64)> {
    let (address, port) = text.split_once(':')?;
    let address = u32::from_str_radix(address, 16).ok()?.swap_bytes();
    let port = u64::from_str_radix(port, 16).ok()?;
    Some((std::net::Ipv4Addr::from(address).to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

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
