//! The zones in which names below a denied one are denied without asking.

use super::{Invalid, zones as read};
use crate::cut::CutZone;
use crate::plan::Zone;

/// Those of the cluster, and further ones that are named; none where it is off.
pub(super) fn zones(
    is_on: Option<bool>,
    further: Vec<String>,
    cluster_domains: &[Zone],
) -> Result<Vec<CutZone>, Invalid> {
    let further = read("nxdomainCutZones", further)?;
    if is_on == Some(false) {
        return match further.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Invalid::Contradiction(
                "nxdomainCutZones are zones of nxdomainCut, which is false",
            )),
        };
    }
    // Everything is below the root: nobody could be asked to deny a whole top-level domain.
    if further.contains(&Zone::root()) {
        return Err(Invalid::Range {
            field: "nxdomainCutZones",
            value: ".".to_owned(),
            range: "a search domain such as ec2.internal".to_owned(),
        });
    }
    let of_cluster = cluster_domains.iter().map(|zone| CutZone {
        zone: *zone,
        is_of_cluster: true,
    });
    let others = further.iter().filter(|zone| !cluster_domains.contains(zone));
    let others = others.map(|zone| CutZone {
        zone: *zone,
        is_of_cluster: false,
    });
    Ok(of_cluster.chain(others).collect())
}
