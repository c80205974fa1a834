//! Tests handshakes between our client and server over a pipe in memory, while certificate files
//! change on a real disk. The tests do not prove that other programs' TLS works with ours.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.0)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }
}

struct Files {
    dir: tempfile::TempDir,
    telemetry: Arc<Telemetry>,
}

impl Files {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            telemetry: Arc::default(),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn server(
        &self,
        (certificate, key): &(String, String),
        client_authority: Option<&Authority>,
    ) -> PortTls {
        let tls = config::ServerTls {
            cert_file: self.write("server.pem", certificate),
            key_file: self.write("server.key", key),
            client_ca_file: client_authority
                .map(|authority| self.write("client-ca.pem", &authority.pem())),
        };
        PortTls::try_new(&tls, &self.telemetry).unwrap()
    }

    fn client(&self, tls: &config::ClientTls) -> Arc<ClientConfig> {
        Arc::new(client_config(tls, &self.telemetry).unwrap())
    }

    fn trusting(&self, authority: &Authority) -> config::ClientTls {
        config::ClientTls {
            ca_file: Some(self.write("ca.pem", &authority.pem())),
            ..Default::default()
        }
    }

    fn reloads(&self, result: &'static str) -> u64 {
        self.telemetry
            .counter("spanscore_certificate_reloads_total", &[("result", result)])
    }
}

/// Performs a handshake and exchanges a greeting; returns the server's certificate, and the
/// client's if it presented one.
async fn shake(
    server: &PortTls,
    client: &Arc<ClientConfig>,
    name: &'static str,
) -> Result<(Vec<u8>, Option<Vec<u8>>), String> {
    let (near, far) = duplex(1 << 16);
    let accept = async {
        let mut stream = TlsAcceptor::from(server.current())
            .accept(far)
            .await
            .map_err(|error| error.to_string())?;
        let mut hello = [0; 5];
        stream
            .read_exact(&mut hello)
            .await
            .map_err(|error| error.to_string())?;
        stream
            .write_all(&hello)
            .await
            .map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())?;
        let peer = stream
            .get_ref()
            .1
            .peer_certificates()
            .map(|chain| chain[0].to_vec());
        Ok::<_, String>(peer)
    };
    let connect = async {
        let name = ServerName::try_from(name).unwrap();
        let mut stream = TlsConnector::from(Arc::clone(client))
            .connect(name, near)
            .await
            .map_err(|error| error.to_string())?;
        stream
            .write_all(b"hello")
            .await
            .map_err(|error| error.to_string())?;
        let mut hello = [0; 5];
        stream
            .read_exact(&mut hello)
            .await
            .map_err(|error| error.to_string())?;
        let certificate = stream
            .get_ref()
            .1
            .peer_certificates()
            .map(|chain| chain[0].to_vec())
            .unwrap_or_default();
        Ok::<_, String>(certificate)
    };
    match tokio::join!(accept, connect) {
        (Ok(client), Ok(server)) => Ok((server, client)),
        (accepted, connected) => Err(format!(
            "server: {:?}, client: {:?}",
            accepted.err(),
            connected.err()
        )),
    }
}

#[tokio::test]
async fn a_client_trusts_the_configured_authority_and_no_other() {
    let (files, ours, theirs) = (
        Files::new(),
        Authority::new("ours"),
        Authority::new("theirs"),
    );
    let server = files.server(&ours.sign("spanscore.test"), None);
    let trusting = files.client(&files.trusting(&ours));
    shake(&server, &trusting, "spanscore.test").await.unwrap();
    let wrong_name = shake(&server, &trusting, "other.test").await.unwrap_err();
    assert!(
        wrong_name.contains("NotValidForName") || wrong_name.contains("not valid for name"),
        "{wrong_name}"
    );
    let wrong_authority = shake(
        &server,
        &files.client(&files.trusting(&theirs)),
        "spanscore.test",
    )
    .await
    .unwrap_err();
    assert!(
        wrong_authority.contains("UnknownIssuer") || wrong_authority.contains("BadSignature"),
        "{wrong_authority}"
    );
    let anybody = config::ClientTls {
        insecure_skip_verify: true,
        ..Default::default()
    };
    shake(&server, &files.client(&anybody), "other.test")
        .await
        .unwrap();
}

#[tokio::test]
async fn with_a_client_authority_only_its_clients_are_let_in() {
    let (files, ours, theirs) = (
        Files::new(),
        Authority::new("ours"),
        Authority::new("theirs"),
    );
    let server = files.server(&ours.sign("spanscore.test"), Some(&ours));
    let nobody = files.trusting(&ours);
    let refused = shake(&server, &files.client(&nobody), "spanscore.test")
        .await
        .unwrap_err();
    assert!(refused.contains("peer sent no certificates"), "{refused}");
    for (authority, is_let_in) in [(&ours, true), (&theirs, false)] {
        let (certificate, key) = authority.sign("agent.test");
        let cert_file = Some(files.write("client.pem", &certificate));
        let key_file = Some(files.write("client.key", &key));
        let client = files.client(&config::ClientTls {
            cert_file,
            key_file,
            ..nobody.clone()
        });
        assert_eq!(
            shake(&server, &client, "spanscore.test").await.is_ok(),
            is_let_in
        );
    }
}

#[tokio::test]
async fn where_clients_may_come_without_a_certificate_only_a_good_one_is_known_by_it() {
    let (files, ours, theirs) = (
        Files::new(),
        Authority::new("ours"),
        Authority::new("theirs"),
    );
    let (certificate, key) = ours.sign("spanscore.test");
    let tls = config::ServerTls {
        cert_file: files.write("server.pem", &certificate),
        key_file: files.write("server.key", &key),
        client_ca_file: Some(files.write("client-ca.pem", &ours.pem())),
    };
    let server = PortTls::with_optional_clients(&tls, &files.telemetry).unwrap();
    let nobody = files.trusting(&ours);
    assert_eq!(
        shake(&server, &files.client(&nobody), "spanscore.test")
            .await
            .unwrap()
            .1,
        None
    );
    for (authority, is_known) in [(&ours, true), (&theirs, false)] {
        let (certificate, key) = authority.sign("caller.test");
        let cert_file = Some(files.write("client.pem", &certificate));
        let key_file = Some(files.write("client.key", &key));
        let client = files.client(&config::ClientTls {
            cert_file,
            key_file,
            ..nobody.clone()
        });
        let known = shake(&server, &client, "spanscore.test")
            .await
            .is_ok_and(|(_, client)| client.is_some());
        assert_eq!(known, is_known);
    }
}

#[tokio::test]
async fn changed_files_are_used_from_the_next_connection_on() {
    let (files, old, new) = (Files::new(), Authority::new("old"), Authority::new("new"));
    let server = files.server(&old.sign("spanscore.test"), Some(&old));
    let mut tls = files.trusting(&old);
    let (certificate, key) = old.sign("agent.test");
    tls.cert_file = Some(files.write("client.pem", &certificate));
    tls.key_file = Some(files.write("client.key", &key));
    let client = files.client(&tls);
    let before = shake(&server, &client, "spanscore.test").await.unwrap();
    assert_eq!(
        shake(&server, &client, "spanscore.test").await.unwrap(),
        before
    );
    assert_eq!(
        (files.reloads("replaced"), files.reloads("unusable")),
        (0, 0)
    );

    // Replace everything: the server's certificate, its accepted clients, the client's authorities,
    // and the client's certificate.
    let ((server_certificate, server_key), (client_certificate, client_key)) =
        (new.sign("spanscore.test"), new.sign("agent.test"));
    files.write("server.pem", &server_certificate);
    files.write("server.key", &server_key);
    files.write("client-ca.pem", &new.pem());
    files.write("ca.pem", &new.pem());
    files.write("client.pem", &client_certificate);
    files.write("client.key", &client_key);
    let after = shake(&server, &client, "spanscore.test").await.unwrap();
    assert_ne!(after.0, before.0, "the server shows its new certificate");
    assert_ne!(after.1, before.1, "the client shows its new certificate");
    assert_eq!(
        (files.reloads("replaced"), files.reloads("unusable")),
        (3, 0)
    );
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_last_good_ones_in_use_and_are_reported_once() {
    let (files, authority) = (Files::new(), Authority::new("ours"));
    let pair = authority.sign("spanscore.test");
    let server = files.server(&pair, None);
    let client = files.client(&files.trusting(&authority));
    let before = shake(&server, &client, "spanscore.test").await.unwrap();
    let (other_certificate, other_key) = authority.sign("spanscore.test");
    // The first case is how a rotation looks from outside: the certificate changes before the key.
    for (n_reports, text) in [(1, other_certificate.as_str()), (2, "half a fi"), (3, "")] {
        files.write("server.pem", text);
        for _ in 0..2 {
            assert_eq!(
                shake(&server, &client, "spanscore.test").await.unwrap(),
                before,
                "{text:?}"
            );
        }
        assert_eq!(
            (files.reloads("replaced"), files.reloads("unusable")),
            (0, n_reports),
            "{text:?}"
        );
    }
    std::fs::remove_file(files.dir.path().join("server.pem")).unwrap();
    assert_eq!(
        shake(&server, &client, "spanscore.test").await.unwrap(),
        before
    );
    assert_eq!(files.reloads("unusable"), 4);
    files.write("server.pem", &other_certificate);
    files.write("server.key", &other_key);
    assert_ne!(
        shake(&server, &client, "spanscore.test").await.unwrap(),
        before
    );
    assert_eq!(
        (files.reloads("replaced"), files.reloads("unusable")),
        (1, 4)
    );
}

#[test]
fn mistakes_at_the_start_are_reported_with_their_file() {
    let (files, authority) = (Files::new(), Authority::new("ours"));
    let ((certificate, key), (_, other_key)) = (authority.sign("a.test"), authority.sign("b.test"));
    let telemetry = Arc::default();
    let server = |certificate: &str, key: &str| {
        let tls = config::ServerTls {
            cert_file: files.write("cert.pem", certificate),
            key_file: files.write("key.pem", key),
            client_ca_file: None,
        };
        let error = PortTls::try_new(&tls, &telemetry)
            .err()
            .map(|error| error.to_string());
        error
            .unwrap_or_default()
            .replace(files.dir.path().to_str().unwrap(), "DIR")
    };
    assert_eq!(server(&certificate, &key), "");
    assert_eq!(
        server("", &key),
        "`DIR/cert.pem` contains no certificate; expected PEM text with a `-----BEGIN …-----` line"
    );
    assert_eq!(
        server(&certificate, &certificate),
        "`DIR/key.pem` contains no private key; expected PEM text with a `-----BEGIN …-----` line"
    );
    let mismatch = server(&certificate, &other_key);
    assert!(
        mismatch.starts_with("cannot use `DIR/cert.pem` with `DIR/key.pem`: "),
        "{mismatch}"
    );
    let missing = config::ClientTls {
        ca_file: Some(PathBuf::from("/nowhere/ca.pem")),
        ..Default::default()
    };
    let missing = client_config(&missing, &telemetry).unwrap_err().to_string();
    assert!(
        missing.starts_with("cannot read `/nowhere/ca.pem`: "),
        "{missing}"
    );
    let half = config::ClientTls {
        cert_file: Some(files.write("c.pem", &certificate)),
        insecure_skip_verify: true,
        ..Default::default()
    };
    assert!(matches!(
        client_config(&half, &telemetry),
        Err(TlsError::Half)
    ));
}
