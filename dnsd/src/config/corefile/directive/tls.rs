//! `tls CERT KEY [CA] { client_auth TYPE }`. CoreDNS' `keylog`, which reveals session keys, and `acme` are refused.

use std::path::PathBuf;

use crate::config::model::{ClientAuth, ServerTls};

use super::super::syntax::{Directive, Line};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const USAGE: &str =
    "tls CERT KEY [CA] { client_auth nocert|request|require|verify_if_given|require_and_verify }";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let head = &directive.head;
    let [certificate, key, authorities @ ..] = head.between(2, 3, USAGE)? else {
        return Err(head.name.error("tls: a word is missing behind it", USAGE));
    };
    let mut tls = ServerTls {
        origin: head.name.position.origin(),
        certificate: PathBuf::from(&certificate.text),
        key: PathBuf::from(&key.text),
        authorities: authorities.first().map(|token| PathBuf::from(&token.text)),
        client_auth: ClientAuth::default(),
    };
    for line in directive.options() {
        match line.name.text.as_str() {
            "client_auth" => tls.client_auth = client_auth(line)?,
            _other => return Err(line.unknown("tls")),
        }
    }
    block_builder.block.tls = Some(tls);
    Ok(())
}

fn client_auth(line: &Line) -> Result<ClientAuth, Error> {
    let token = line.one("client_auth TYPE")?;
    let found = ClientAuth::ALL.into_iter().find(|one| one.name() == token.text);
    found.ok_or_else(|| {
        token.error(
            format!("client_auth: {:?}", token.text),
            ClientAuth::ALL.map(ClientAuth::name).join(", "),
        )
    })
}
