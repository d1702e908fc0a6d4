//! The authority that is written anew in what a client of the API server's network proxy sends.

use egret_konnectivity::server::{AuthorityError, AuthorityRewriter};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reading ends; the pieces in which octets arrive make no difference; and what was written anew stays as it is.
pub fn check(octets: &[u8]) {
    let Some((piece, frames)) = octets.split_first() else {
        return;
    };
    let stream = [PREFACE, frames].concat();
    let whole = rewritten(&stream, stream.len());
    let pieces = rewritten(&stream, usize::from(*piece).max(1));
    assert_eq!(whole.1, pieces.1, "in pieces of {piece}");
    let Ok(()) = whole.1 else {
        return;
    };
    assert_eq!(whole.0, pieces.0, "in pieces of {piece}");
    assert_eq!(rewritten(&whole.0, whole.0.len()), (whole.0.clone(), Ok(())));
}

fn rewritten(stream: &[u8], piece: usize) -> (Vec<u8>, Result<(), AuthorityError>) {
    let (mut rewriter, mut output) = (AuthorityRewriter::default(), Vec::new());
    for octets in stream.chunks(piece) {
        if let Err(error) = rewriter.push(octets, &mut output) {
            assert!(!error.to_string().is_empty());
            return (output, Err(error));
        }
    }
    (output, Ok(()))
}
