//! Keys of the tests, made anew in each run; every server and agent has the same.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Writes `ca.crt`, and `server` and `client` with `.crt` and `.key`.
pub(crate) fn write(folder: &Path) {
    static FILES: OnceLock<Vec<(String, String)>> = OnceLock::new();
    for (name, text) in FILES.get_or_init(make) {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Writes others in their place, of another authority.
pub(crate) fn write_other(folder: &Path) {
    for (name, text) in make() {
        fs::write(folder.join(name), text).unwrap();
    }
}

fn make() -> Vec<(String, String)> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // OpenSSL takes a certificate of the issuer's name for one that signed itself.
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut files = vec![("ca.crt".to_owned(), authority.pem())];
    for name in ["server", "client"] {
        let names = [
            "127.0.0.1",
            "127.0.0.2",
            "localhost",
            "192.0.2.1",
            "hook.default.svc",
            "things.default.svc",
        ];
        let names = names.map(str::to_owned);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &authority).unwrap();
        files.push((format!("{name}.crt"), certificate.pem()));
        files.push((format!("{name}.key"), key.serialize_pem()));
    }
    files
}
