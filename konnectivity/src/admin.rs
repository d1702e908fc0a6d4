//! The listeners for operators, of both programs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use egret_shared::rt::{admin, task};
use tokio::net::TcpListener;

/// Answers at each address, as long as the runtime runs.
///
/// # Errors
/// With the address that cannot be had.
pub(crate) fn serve(
    addresses: [SocketAddr; 2],
    handler: &Arc<dyn admin::AdminHandler>,
) -> Result<(), (SocketAddr, io::Error)> {
    for address in addresses {
        let listener = admin::bind(address).and_then(TcpListener::from_std);
        let listener = listener.map_err(|source| (address, source))?;
        task::spawn("admin", admin::serve(listener, Arc::clone(handler)));
    }
    Ok(())
}

/// A number of things, as a gauge has it.
pub(crate) fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}
