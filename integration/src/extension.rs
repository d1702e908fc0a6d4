//! What extends an API server, and is asked by it: a webhook that refuses every object, and an aggregated API. Each by TLS, one request a connection.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
};

use serde_json::{Value, json};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// The message of the webhook's refusals.
pub const REFUSAL: &str = "the webhook says no";
/// Group of the aggregated API, and its page `/apis/things.example.com/v1/hello`.
pub const GROUP: &str = "things.example.com";
pub const HELLO: &str = "of the aggregated API\n";

/// A connection by TLS.
pub type Tls = StreamOwned<ServerConnection, TcpStream>;

type Failure = Box<dyn std::error::Error>;

/// The webhook, for every path of the API server that is not the aggregated API's, and the aggregated API. Returns the port.
///
/// # Errors
/// As [`serve_tls`].
pub fn serve(folder: &Path, at: SocketAddr) -> Result<u16, Failure> {
    serve_tls(folder, at, |stream, request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let page = if path.starts_with(&format!("/apis/{GROUP}/v1/hello")) {
            return answer(stream, "200 OK", "text/plain", HELLO);
        } else if path.starts_with("/apis") {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": []})
        } else {
            refusal(request)
        };
        answer(stream, "200 OK", "application/json", &page.to_string());
    })
}

/// The answer to an `AdmissionReview`.
fn refusal(request: &str) -> Value {
    let body = request.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    // Without a uid the API server does not take the answer.
    let asked: Value = serde_json::from_str(body).unwrap_or_default();
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": asked["request"]["uid"], "allowed": false, "status": {"message": REFUSAL}},
    })
}

/// Serves requests, each whole with its body, with `server.crt` and `server.key` of the folder. Returns the port; port 0 takes a free one.
///
/// # Errors
/// When a file cannot be read, or the address cannot be bound.
pub fn serve_tls(
    folder: &Path,
    at: SocketAddr,
    serve: impl Fn(&mut Tls, &str) + Send + Sync + 'static,
) -> Result<u16, Failure> {
    let chain = CertificateDer::pem_file_iter(folder.join("server.crt"))?;
    let chain = chain.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let (config, serve) = (Arc::new(config), Arc::new(serve));
    let listener = TcpListener::bind(at)?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (config, serve) = (Arc::clone(&config), Arc::clone(&serve));
            std::thread::spawn(move || {
                let Ok(connection) = ServerConnection::new(config) else {
                    return;
                };
                let mut stream = StreamOwned::new(connection, stream);
                let request = read_request(&mut stream);
                serve(&mut stream, &request);
            });
        }
    });
    Ok(port)
}

/// Writes an answer of HTTP/1.1 and ends the connection.
pub fn answer(stream: &mut Tls, status: &str, kind: &str, page: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    drop(stream.write_all(answer.as_bytes()));
    stream.conn.send_close_notify();
    drop(stream.flush());
}

fn read_request(stream: &mut Tls) -> String {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut buffer).unwrap_or(0);
        request.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let field = |line: &str| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse::<usize>()
                    .ok()
            };
            body.len() >= head.lines().find_map(field).unwrap_or(0)
        });
        if whole || length == 0 {
            return text;
        }
    }
}
