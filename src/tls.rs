//! Builds rustls configurations from certificate files, and rebuilds them when the files change.
//! Only this file names the provider, ring, because there is no process-wide default.
//!
//! The files are read when a connection starts (a few small reads, which cost little beside a
//! handshake's signature), and the configuration is reused while the contents are unchanged. So a
//! rotated certificate needs no timer, no watcher and no restart, and a symlink swap of a
//! Kubernetes secret is noticed. Half-written files cause one warning, and the last good
//! configuration stays in use.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use sha2::{Digest, Sha256};

use crate::config;
use crate::sync::Mutex;
use crate::telemetry::{CertificatesReplaced, CertificatesUnusable, Telemetry};

/// The reason why certificate files cannot be used. The caller adds the setting that names them.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{}`: {error}; check the path and its permissions", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "`{}` contains no {expected}; expected PEM text with a `-----BEGIN …-----` line",
        path.display()
    )]
    Empty {
        path: PathBuf,
        /// `certificate` or `private key`.
        expected: &'static str,
    },
    #[error("`{}` is not valid PEM: {error}", path.display())]
    NotPem { path: PathBuf, error: pem::Error },
    #[error("cannot use {files}: {error}; check that the key belongs to the certificate")]
    Unusable { files: String, error: String },
    #[error("`cert_file` and `key_file` belong together, only one is set; set both or neither")]
    Half,
    #[error(
        "this system has no certificate authorities, so no server can be verified; set `ca_file`"
    )]
    NoAuthorities,
}

// === client ===

/// Returns the configuration for connections to a peer. The configuration reloads its files, so it
/// serves every connection.
///
/// The caller sets ALPN (hyper-rustls requires it to be empty here) and `server_name`, which
/// belongs to the connection. Fails if a file cannot be used, or if the system's authorities are
/// needed and there are none. A file that becomes unusable later causes a warning, and its last
/// good content stays in use.
pub fn client_config(
    tls: &config::ClientTls,
    telemetry: &Arc<Telemetry>,
) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let peer_verifier = |trust| PeerVerifier {
        provider: Arc::clone(&provider),
        trust,
    };
    let verifier: Arc<dyn ServerCertVerifier> = match &tls.ca_file {
        _ if tls.insecure_skip_verify => Arc::new(peer_verifier(Trust::Anything)),
        Some(path) => {
            let verifier = Watched::new(vec![path.clone()], telemetry, |files| {
                server_verifier(authorities(&files[0])?, &files[0].describe())
            })?;
            Arc::new(peer_verifier(Trust::Authorities(verifier)))
        }
        None => server_verifier(system_authorities()?, "the system's authorities")?,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("the TLS versions", &error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&tls.cert_file, &tls.key_file) {
        (Some(cert_file), Some(key_file)) => {
            let watched = Watched::new(
                vec![cert_file.clone(), key_file.clone()],
                telemetry,
                |files| certified_key(&files[0], &files[1]),
            )?;
            builder.with_client_cert_resolver(Arc::new(WatchedClientCert(watched)))
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(TlsError::Half),
    };
    if tls.cert_file.is_some() || tls.ca_file.is_some() {
        // A resumed session would use its original identity and trust even after a file was
        // rotated.
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

#[derive(Debug)]
struct WatchedClientCert(Watched<CertifiedKey>);

impl ResolvesClientCert for WatchedClientCert {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Verifies a server's certificate, unless verification is disabled. Always verifies that the
/// server owns the certificate's key.
#[derive(Debug)]
struct PeerVerifier {
    provider: Arc<CryptoProvider>,
    trust: Trust,
}

#[derive(Debug)]
enum Trust {
    /// The certificate must come from an authority of `ca_file`.
    Authorities(Watched<WebPkiServerVerifier>),
    /// `insecure_skip_verify`: any certificate is accepted.
    Anything,
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Trust::Authorities(verifier) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        verifier.current().verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

// === server ===

/// TLS of a port: the server's certificate and, with mTLS, the authorities of client certificates.
#[derive(Debug)]
pub struct PortTls(Watched<ServerConfig>);

impl PortTls {
    /// Reads the files. With `client_ca_file`, clients must present a certificate of an authority
    /// in that file.
    pub fn try_new(tls: &config::ServerTls, telemetry: &Arc<Telemetry>) -> Result<Self, TlsError> {
        Watched::new(server_files(tls), telemetry, |files| {
            server_config(files, ClientCertificate::Required)
        })
        .map(Self)
    }

    /// Like [`Self::try_new`], but clients may connect without a certificate: the service decides
    /// what they may request. A certificate of another authority is still rejected.
    pub fn with_optional_clients(
        tls: &config::ServerTls,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, TlsError> {
        Watched::new(server_files(tls), telemetry, |files| {
            server_config(files, ClientCertificate::Optional)
        })
        .map(Self)
    }

    /// Reads the files, and returns the configuration for the next connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.0.current()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientCertificate {
    Required,
    Optional,
}

fn server_files(tls: &config::ServerTls) -> Vec<PathBuf> {
    [&tls.cert_file, &tls.key_file]
        .into_iter()
        .chain(&tls.client_ca_file)
        .cloned()
        .collect()
}

fn server_config(
    files: &[PemFile],
    certificate: ClientCertificate,
) -> Result<Arc<ServerConfig>, TlsError> {
    let [cert_file, key_file, client_ca_file @ ..] = files else {
        return Err(TlsError::Half);
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("the TLS versions", &error))?;
    let builder = match client_ca_file.first() {
        Some(file) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::new(authorities(file)?),
                provider(),
            );
            let verifier = if certificate == ClientCertificate::Optional {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            let verifier = verifier
                .build()
                .map_err(|error| unusable(&file.describe(), &error))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(cert_file.certificates()?, key_file.private_key()?)
        .map_err(|error| {
            unusable(
                &format!("{} with {}", cert_file.describe(), key_file.describe()),
                &error,
            )
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

// === Watched ===

/// A value built from files, and rebuilt when their contents change.
struct Watched<T> {
    paths: Vec<PathBuf>,
    build: fn(&[PemFile]) -> Result<Arc<T>, TlsError>,
    telemetry: Arc<Telemetry>,
    /// Locked for a few small reads and, after a change, one parse; never across an await.
    loaded: Mutex<Loaded<T>>,
}

struct Loaded<T> {
    built: Arc<T>,
    /// The fingerprint of the last contents, good or bad, so that bad contents are reported once.
    fingerprint: Fingerprint,
}

/// SHA-256 of the files; `None` if a file could not be read.
type Fingerprint = Option<[u8; 32]>;

impl<T> Watched<T> {
    fn new(
        paths: Vec<PathBuf>,
        telemetry: &Arc<Telemetry>,
        build: fn(&[PemFile]) -> Result<Arc<T>, TlsError>,
    ) -> Result<Self, TlsError> {
        let files = PemFile::read_all(&paths)?;
        let loaded = Loaded {
            built: build(&files)?,
            fingerprint: fingerprint(&files),
        };
        Ok(Self {
            paths,
            build,
            telemetry: Arc::clone(telemetry),
            loaded: Mutex::new(loaded),
        })
    }

    fn current(&self) -> Arc<T> {
        let mut loaded = self.loaded.lock();
        let files = PemFile::read_all(&self.paths);
        let fingerprint = files.as_deref().ok().and_then(fingerprint);
        if fingerprint != loaded.fingerprint {
            loaded.fingerprint = fingerprint;
            match files.and_then(|files| (self.build)(&files)) {
                Ok(built) => {
                    loaded.built = built;
                    CertificatesReplaced {
                        files: describe(&self.paths),
                    }
                    .emit(&self.telemetry);
                }
                Err(error) => CertificatesUnusable {
                    error: error.to_string(),
                }
                .emit(&self.telemetry),
            }
        }
        Arc::clone(&loaded.built)
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.paths).finish()
    }
}

fn fingerprint(files: &[PemFile]) -> Fingerprint {
    let mut hash = Sha256::new();
    for file in files {
        hash.update((file.text.len() as u64).to_le_bytes());
        hash.update(&file.text);
    }
    Some(hash.finalize().into())
}

// === PemFile ===

struct PemFile {
    path: PathBuf,
    text: Vec<u8>,
}

impl PemFile {
    fn read_all(paths: &[PathBuf]) -> Result<Vec<Self>, TlsError> {
        let read = |path: &PathBuf| match std::fs::read(path) {
            Ok(text) => Ok(Self {
                path: path.clone(),
                text,
            }),
            Err(error) => Err(TlsError::Unreadable {
                path: path.clone(),
                error,
            }),
        };
        paths.iter().map(read).collect()
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates = CertificateDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TlsError::NotPem {
                path: self.path.clone(),
                error,
            })?;
        if certificates.is_empty() {
            Err(TlsError::Empty {
                path: self.path.clone(),
                expected: "certificate",
            })
        } else {
            Ok(certificates)
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::Empty {
                path: self.path.clone(),
                expected: "private key",
            },
            error => TlsError::NotPem {
                path: self.path.clone(),
                error,
            },
        })
    }

    fn describe(&self) -> String {
        describe(std::slice::from_ref(&self.path))
    }
}

fn describe(paths: &[PathBuf]) -> String {
    let quote = |path: &PathBuf| format!("`{}`", Path::display(path));
    paths.iter().map(quote).collect::<Vec<_>>().join(", ")
}

fn unusable(files: &str, error: &dyn fmt::Display) -> TlsError {
    TlsError::Unusable {
        files: files.to_owned(),
        error: error.to_string(),
    }
}

fn certified_key(cert_file: &PemFile, key_file: &PemFile) -> Result<Arc<CertifiedKey>, TlsError> {
    CertifiedKey::from_der(
        cert_file.certificates()?,
        key_file.private_key()?,
        &provider(),
    )
    .map(Arc::new)
    .map_err(|error| {
        unusable(
            &format!("{} with {}", cert_file.describe(), key_file.describe()),
            &error,
        )
    })
}

fn authorities(file: &PemFile) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in file.certificates()? {
        roots
            .add(certificate)
            .map_err(|error| unusable(&file.describe(), &error))?;
    }
    Ok(roots)
}

/// Returns the system's authorities. They are read once, because they change only with the system's
/// packages, and reading them takes some milliseconds.
fn system_authorities() -> Result<RootCertStore, TlsError> {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        // Unreadable or invalid certificates of the system are skipped, as in other programs.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    });
    if roots.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(roots.clone()) }
}

fn server_verifier(
    roots: RootCertStore,
    files: &str,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| unusable(files, &error))
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(ring::default_provider())))
}

#[cfg(test)]
mod tests;
