//! Steps about a policy that changes: what it forbids ends at once, and an enforcer that dies in the middle of a change
//! leaves either the old policy or the new one.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::{Connection, Load, Outcome};

use super::{
    DemoError, Seen,
    deployment::{API, Deployment, address, examples},
    lifecycle::start_load,
};

/// The file that both steps change.
const POLICY: &str = "client-by-name.yaml";
/// What the first step takes out of it.
const BY_NAME: &str = "      - api.example.test\n";
/// What the second step puts in front of the last rule, and takes out again.
const BY_ADDRESS: &str =
    "  - name: by-address\n    action: Accept\n    to:\n    - networks: [192.0.2.7/32]\n";
const LAST_RULE: &str = "  - name: everything-else\n";
/// What that rule opens.
const OPENED: &str = "192.0.2.7";
/// How soon a change ends what it forbids.
const SOON: Duration = Duration::from_secs(1);
const IN_FORCE_WITHIN: Duration = Duration::from_secs(5);
/// How often the enforcer is killed, each time a little later in the change.
const KILLS: u32 = 8;

pub(super) fn end_a_connection(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    deployment.getent("client", "api.example.test")?;
    let kept = deployment.getent("client", "img.cdn.example.test")?;
    let mut forbidden = open(deployment, API)?;
    let mut allowed = open(
        deployment,
        &kept.first().map(ToString::to_string).unwrap_or_default(),
    )?;
    let written = read_policy()?;
    deployment.screen().typed(
        "#",
        &format!(
            "sed -i '/{}/d' {}/{POLICY}",
            BY_NAME.trim(),
            deployment.world.manifests().folder().display()
        ),
    );
    deployment
        .world
        .manifests()
        .write(POLICY, &written.replacen(BY_NAME, "", 1))?;
    let ended = end_of(&mut forbidden);
    let goes_on = allowed.is_alive();
    deployment.world.manifests().write(POLICY, &written)?;
    deployment
        .screen()
        .line("The line is put back; what is allowed again can be opened again.");
    let again = deployment
        .screen()
        .wait("until it connects again", IN_FORCE_WITHIN, || {
            deployment.connects("client", address(API), 443).then_some(())
        });
    let other = if goes_on { "goes on" } else { "is dead" };
    Ok(match ended {
        Some((after, how)) => Seen::new(
            goes_on && again.is_some() && after <= SOON,
            format!(
                "the program was told \"{how}\" {} ms after; the other connection {other}",
                after.as_millis()
            ),
        ),
        None => Seen::new(false, format!("it goes on; the other connection {other}")),
    })
}

pub(super) fn kill_in_the_middle(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let written = read_policy()?;
    let opening = written.replacen(LAST_RULE, &format!("{BY_ADDRESS}{LAST_RULE}"), 1);
    deployment.screen().line(&format!(
        "A rule for {OPENED} is put in and taken out by turns; the load runs all the while."
    ));
    let load = start_load(deployment);
    let takes = time_a_change(deployment, &opening, &written)?;
    let mut kept = 0;
    for kill in 0..KILLS {
        let opens = kill % 2 == 0;
        deployment
            .world
            .manifests()
            .write(POLICY, if opens { &opening } else { &written })?;
        thread::sleep(takes * kill / (KILLS - 1));
        deployment.enforcer.kill()?;
        let then = is_open(deployment);
        let stays = (0..3).all(|_| is_open(deployment) == then);
        deployment.enforcer.restart()?;
        deployment.enforcer.wait_until_ready()?;
        kept += u32::from(stays && await_verdict(deployment, opens).is_some());
    }
    deployment.world.manifests().write(POLICY, &written)?;
    await_verdict(deployment, false);
    Ok(judge(deployment, load, kept, takes))
}

fn judge(deployment: &Deployment, load: Load, kept: u32, takes: Duration) -> Seen {
    let report = load.stop();
    report
        .notes
        .iter()
        .for_each(|note| deployment.screen().line(note));
    Seen::new(
        report.is_clean() && kept == KILLS,
        format!(
            "{kept} of {KILLS} kills within {} ms of a change: one of both policies, then the new one; lost {}, leaked {}",
            takes.as_millis(),
            report.lost,
            report.leaked
        ),
    )
}

/// How long a change takes from the file to the packet, there and back.
fn time_a_change(deployment: &Deployment, opening: &str, written: &str) -> Result<Duration, DemoError> {
    let late = || DemoError::Unexpected("a change of policy was not in force after 5 s".to_owned());
    deployment.world.manifests().write(POLICY, opening)?;
    let opened = await_verdict(deployment, true).ok_or_else(late)?;
    deployment.world.manifests().write(POLICY, written)?;
    let closed = await_verdict(deployment, false).ok_or_else(late)?;
    Ok(opened.max(closed))
}

fn await_verdict(deployment: &Deployment, open: bool) -> Option<Duration> {
    let begun = Instant::now();
    while begun.elapsed() < IN_FORCE_WITHIN {
        let tried = begun.elapsed();
        if is_open(deployment) == open {
            return Some(tried);
        }
    }
    None
}

fn is_open(deployment: &Deployment) -> bool {
    /// A refused packet is dropped: the answer is that nothing comes.
    const PATIENCE: Duration = Duration::from_millis(50);
    deployment
        .pod("client")
        .connect_tcp((address(OPENED), 443).into(), PATIENCE)
        .is_connected()
}

fn open(deployment: &Deployment, to: &str) -> Result<Connection, DemoError> {
    match deployment.connect("client", address(to), 443) {
        Outcome::Connected(connection) => Ok(connection),
        outcome => Err(DemoError::Unexpected(format!(
            "{to} was not reached: {outcome:?}"
        ))),
    }
}

/// When a connection ended, and what its program was told.
fn end_of(connection: &mut Connection) -> Option<(Duration, String)> {
    let begun = Instant::now();
    while begun.elapsed() < IN_FORCE_WITHIN {
        if let Err(error) = connection.echo_within(SOON) {
            return Some((begun.elapsed(), error.to_string()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

fn read_policy() -> Result<String, DemoError> {
    let found = examples()?.into_iter().find(|path| path.ends_with(POLICY));
    let path = found.ok_or_else(|| DemoError::Unexpected(format!("there is no {POLICY}")))?;
    let text = fs::read_to_string(path)?;
    let is_as_known = text.matches(BY_NAME).count() == 1 && text.matches(LAST_RULE).count() == 1;
    let changed = || DemoError::Unexpected(format!("{POLICY} is not what this step changes"));
    is_as_known.then_some(text).ok_or_else(changed)
}
