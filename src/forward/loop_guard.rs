//! Refuses a downstream that is one of our own listeners.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::config::Destination;

use super::ForwardError;

/// Returns an error if `destination` is one of our own `listeners`, under any name. A name that
/// does not resolve is not a loop.
pub async fn check_loop(
    destination: &Destination,
    listeners: &[SocketAddr],
) -> Result<(), ForwardError> {
    let endpoint = &destination.endpoint;
    // Resolve the name only if the port is ours, so that most starts do not wait for DNS.
    if listeners
        .iter()
        .all(|listener| listener.port() != endpoint.port)
    {
        return Ok(());
    }
    let resolved: io::Result<Vec<SocketAddr>> =
        tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port))
            .await
            .map(|addresses| addresses.collect());
    for address in resolved.unwrap_or_default() {
        if let Some(listener) = listeners
            .iter()
            .find(|listener| is_ours(address, **listener, is_local_address))
        {
            let remedy = if destination.origin.starts_with("OTEL_") {
                "in a pod, agent and sidecar often share the OTEL_ variables, so set \
                 SPANSCORE_FORWARD__ENDPOINT or `forward.endpoint`"
            } else {
                "name the backend's endpoint, or listen on another port"
            };
            return Err(ForwardError::Loop {
                origin: destination.origin.clone(),
                host: endpoint.host.clone(),
                port: endpoint.port,
                listener: *listener,
                remedy,
            });
        }
    }
    Ok(())
}

/// Returns true if a connection to `address` ends at `listener`.
fn is_ours(
    address: SocketAddr,
    listener: SocketAddr,
    is_local_address: impl Fn(IpAddr) -> bool,
) -> bool {
    let target = match address.ip().to_canonical() {
        // A connection to an unspecified address reaches this machine.
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let listens_there = match listener.ip().to_canonical() {
        // [::] accepts IPv4 as well.
        ip if ip.is_unspecified() => {
            (ip.is_ipv6() || target.is_ipv4()) && (target.is_loopback() || is_local_address(target))
        }
        ip => ip == target,
    };
    address.port() == listener.port() && listens_there
}

/// Returns true if the address belongs to this machine: the system binds sockets only to its own
/// addresses, so listing interfaces is unnecessary.
fn is_local_address(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Protocol;
    use crate::transport::tests::peer;

    #[test]
    fn our_own_listeners_are_known_by_all_their_addresses() {
        let is_ours = |address: &str, listener: &str| {
            let host = |ip: IpAddr| ip == IpAddr::from([192, 168, 1, 5]);
            is_ours(address.parse().unwrap(), listener.parse().unwrap(), host)
        };
        let cases = [
            ("127.0.0.1:4317", "127.0.0.1:4317", true),
            ("127.0.0.1:4318", "127.0.0.1:4317", false),
            ("127.0.0.2:4317", "127.0.0.1:4317", false),
            ("[::1]:4317", "127.0.0.1:4317", false),
            ("[::ffff:127.0.0.1]:4317", "127.0.0.1:4317", true),
            ("0.0.0.0:4317", "127.0.0.1:4317", true),
            ("[::]:4317", "[::1]:4317", true),
            ("127.0.0.1:4317", "0.0.0.0:4317", true),
            ("192.168.1.5:4317", "0.0.0.0:4317", true),
            ("192.168.1.6:4317", "0.0.0.0:4317", false),
            ("[::1]:4317", "0.0.0.0:4317", false),
            ("192.168.1.5:4317", "[::]:4317", true),
            ("[::1]:4317", "[::]:4317", true),
            ("192.168.1.5:4317", "127.0.0.1:4317", false),
        ];
        for (address, listener, expected) in cases {
            assert_eq!(
                is_ours(address, listener),
                expected,
                "{address} at {listener}"
            );
        }
    }

    #[tokio::test]
    async fn a_downstream_that_is_ourselves_is_refused_with_the_variable_it_came_from() {
        let listeners = [
            "127.0.0.1:4317".parse().unwrap(),
            "127.0.0.1:4318".parse().unwrap(),
        ];
        let check = async |host: &str, port: u16, origin: &str| {
            let mut destination =
                peer::destination(SocketAddr::from(([127, 0, 0, 1], port)), Protocol::Grpc);
            destination.endpoint.host = host.to_owned();
            destination.origin = origin.to_owned();
            check_loop(&destination, &listeners)
                .await
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            check("localhost", 4318, "OTEL_EXPORTER_OTLP_ENDPOINT").await,
            Err(
                "`OTEL_EXPORTER_OTLP_ENDPOINT` points at localhost:4318, where \
                 spanscore itself listens (127.0.0.1:4318): telemetry would be forwarded in a \
                 loop; \
                 in a pod, agent and sidecar often share the OTEL_ variables, so set \
                 SPANSCORE_FORWARD__ENDPOINT or `forward.endpoint`"
                    .to_owned()
            )
        );
        assert_eq!(
            check("0.0.0.0", 4317, "forward.endpoint").await,
            Err(
                "`forward.endpoint` points at 0.0.0.0:4317, where spanscore \
                 itself listens (127.0.0.1:4317): telemetry would be forwarded in a loop; \
                 name the backend's endpoint, or listen on another port"
                    .to_owned()
            )
        );
        assert_eq!(check("localhost", 4319, "forward.endpoint").await, Ok(()));
        assert_eq!(
            check("no-such-host.invalid", 4317, "forward.endpoint").await,
            Ok(())
        );
    }
}
