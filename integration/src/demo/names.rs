//! Steps about what a name opens, and for whom.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::{
    DemoError, Seen,
    deployment::{API, BLOG, Deployment, MANY, UNKNOWN, address, examples},
};

const IN_FORCE_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn apply_the_examples(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let open_before = deployment.connects("client", address(UNKNOWN), 443);
    let folder = deployment.world.manifests().folder().display().to_string();
    let begun = Instant::now();
    for file in examples()? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        deployment
            .screen()
            .typed("#", &format!("cp deploy/examples/by-name/{name} {folder}/"));
        deployment
            .world
            .manifests()
            .write(&name, &fs::read_to_string(&file)?)?;
    }
    let refused = deployment
        .screen()
        .wait("until it is refused", IN_FORCE_WITHIN, || {
            let tried = begun.elapsed();
            (!deployment.connects("client", address(UNKNOWN), 443)).then_some(tried)
        });
    Ok(match (open_before, refused) {
        (true, Some(after)) => Seen::new(
            true,
            format!("open before, refused {} ms after", after.as_millis()),
        ),
        (true, None) => Seen::new(false, "open before, still open after 5 s"),
        (false, _) => Seen::new(false, "refused before any policy"),
    })
}

pub(super) fn ask_and_connect(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let told = deployment.getent("client", "api.example.test")?;
    let output = deployment.run("client", "curl -sS -m 2 http://api.example.test/")?;
    let page = output.stdout.trim();
    let is_told = told.iter().any(|address| address.to_string() == page);
    let text = match (output.success(), is_told) {
        (true, true) => format!("connected to {page}"),
        (true, false) => format!("connected to {page}, which it was not told"),
        (false, _) => "refused".to_owned(),
    };
    Ok(Seen::new(output.success() && is_told, text))
}

pub(super) fn try_a_name_that_is_not_allowed(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let told = deployment.getent("client", "blog.example.test")?;
    let connected = deployment.curl("client", "blog.example.test")?;
    let answered = told == [address(BLOG)];
    let answer = if answered { "answered" } else { "not answered" };
    Ok(Seen::new(
        answered && !connected,
        format!("{answer}, connection {}", verdict(!connected)),
    ))
}

pub(super) fn try_as_another_pod(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let before = deployment.curl("other", API)?;
    deployment.getent("other", "api.example.test")?;
    let after = deployment.curl("other", API)?;
    Ok(Seen::new(
        !before && after,
        format!("{} before it asks, {} after", outcome(before), outcome(after)),
    ))
}

pub(super) fn try_a_wildcard(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let below = deployment.curl("client", "img.eu.cdn.example.test")?;
    let itself = deployment.curl("client", "cdn.example.test")?;
    Ok(Seen::new(
        below && !itself,
        format!(
            "img.eu.cdn.example.test {}, cdn.example.test {}",
            outcome(below),
            outcome(itself)
        ),
    ))
}

pub(super) fn use_every_address_of_many(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let told = deployment.getent("client", "many.example.test")?;
    let connected = told
        .iter()
        .filter(|address| deployment.connects("client", **address, 443))
        .count();
    Ok(Seen::new(
        told.len() == MANY && connected == MANY,
        format!("{} addresses told, {connected} connected", told.len()),
    ))
}

pub(super) fn connect_between_pods(deployment: &mut Deployment) -> Result<Seen, DemoError> {
    let worker = deployment.pod("worker").address();
    let inside = deployment.curl("other", format!("{worker}:8010"))?;
    let outside = deployment.curl("other", format!("{worker}:8011"))?;
    let client = deployment.curl("client", format!("{worker}:8010"))?;
    Ok(Seen::new(
        inside && !outside && !client,
        format!(
            "shop/other: 8010 {}, 8011 {}; shop/client: 8010 {}",
            outcome(inside),
            outcome(outside),
            outcome(client)
        ),
    ))
}

pub(super) const fn outcome(connected: bool) -> &'static str {
    if connected { "connected" } else { "refused" }
}

const fn verdict(refused: bool) -> &'static str {
    if refused { "refused" } else { "allowed" }
}
