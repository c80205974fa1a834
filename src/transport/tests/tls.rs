//! Tests delivery over TLS and mutual TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

use super::{DELIVERED, client, why};
use crate::config::ClientTls;
use crate::transport::tests::peer::{Peer, Reply};
use crate::transport::*;

struct Pki {
    _dir: TempDir,
    ca_file: PathBuf,
    cert_file: PathBuf,
    key_file: PathBuf,
}

/// Returns an authority, and a certificate that it issued for `localhost` and for clients.
fn pki() -> Pki {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &ca)
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (ca_file, cert_file, key_file) = (
        write("ca.pem", ca.pem()),
        write("cert.pem", cert.pem()),
        write("key.pem", key.serialize_pem()),
    );
    Pki {
        _dir: dir,
        ca_file,
        cert_file,
        key_file,
    }
}

impl Pki {
    /// Returns an acceptor that presents the certificate. With `is_mutual`, it admits only clients
    /// that present a certificate, too.
    fn acceptor(&self, is_mutual: bool) -> TlsAcceptor {
        let read = |path: &Path| CertificateDer::from_pem_file(path).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(read(&self.ca_file)).unwrap();
        let builder = if is_mutual {
            builder.with_client_cert_verifier(
                rustls::server::WebPkiClientVerifier::builder_with_provider(
                    Arc::new(roots),
                    provider,
                )
                .build()
                .unwrap(),
            )
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(&self.key_file).unwrap();
        let mut config = builder
            .with_single_cert(vec![read(&self.cert_file)], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config).into()
    }
}

async fn send_over_tls(
    pki: &Pki,
    is_mutual: bool,
    protocol: Protocol,
    host: &str,
    tls: ClientTls,
) -> DeliveryOutcome {
    let address = "127.0.0.1:0".parse().unwrap();
    let peer = Peer::start_at(address, Some(pki.acceptor(is_mutual)), |_, _| {
        Reply::taken()
    })
    .await;
    let mut destination = Destination {
        tls,
        ..peer.destination(protocol)
    };
    destination.endpoint.tls = true;
    destination.endpoint.host = host.to_owned();
    client(&destination)
        .send(Signal::Traces, Bytes::from_static(b"x"), &HeaderMap::new())
        .await
}

#[tokio::test]
async fn tls_and_mutual_tls_work_over_both_protocols() {
    let pki = pki();
    let one_way = ClientTls {
        ca_file: Some(pki.ca_file.clone()),
        ..ClientTls::default()
    };
    let mutual = ClientTls {
        cert_file: Some(pki.cert_file.clone()),
        key_file: Some(pki.key_file.clone()),
        ..one_way.clone()
    };
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        assert_eq!(
            send_over_tls(&pki, false, protocol, "localhost", one_way.clone()).await,
            DELIVERED
        );
        assert_eq!(
            send_over_tls(&pki, true, protocol, "localhost", mutual.clone()).await,
            DELIVERED
        );
        why(send_over_tls(&pki, true, protocol, "localhost", one_way.clone()).await);
    }
}

#[tokio::test]
async fn a_certificate_must_be_of_a_trusted_authority_and_for_the_right_name() {
    let pki = pki();
    let trusted = ClientTls {
        ca_file: Some(pki.ca_file.clone()),
        ..ClientTls::default()
    };
    let untrusted = why(send_over_tls(
        &pki,
        false,
        Protocol::Grpc,
        "localhost",
        ClientTls {
            ca_file: Some(self::pki().ca_file),
            ..trusted.clone()
        },
    )
    .await);
    assert!(untrusted.contains("certificate"), "{untrusted}");
    let other_name =
        why(send_over_tls(&pki, false, Protocol::Grpc, "127.0.0.1", trusted.clone()).await);
    assert!(other_name.contains("certificate"), "{other_name}");
    let named = ClientTls {
        server_name: Some("localhost".to_owned()),
        ..trusted
    };
    assert_eq!(
        send_over_tls(&pki, false, Protocol::Grpc, "127.0.0.1", named).await,
        DELIVERED
    );
    let blind = ClientTls {
        insecure_skip_verify: true,
        ..ClientTls::default()
    };
    assert_eq!(
        send_over_tls(&pki, false, Protocol::Grpc, "127.0.0.1", blind).await,
        DELIVERED
    );
}
