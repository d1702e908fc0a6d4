//! Steps about what a name opens, and for whom.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::{
    DemoError, Seen,
    stage::{API, BLOG, MANY, Stage, UNKNOWN, address, examples},
};

const IN_FORCE_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn apply_the_examples(stage: &mut Stage) -> Result<Seen, DemoError> {
    let open_before = stage.connects("client", address(UNKNOWN), 443);
    let folder = stage.world.manifests().folder().display().to_string();
    let begun = Instant::now();
    for file in examples()? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        stage
            .screen()
            .typed("#", &format!("cp deploy/examples/by-name/{name} {folder}/"));
        stage
            .world
            .manifests()
            .write(&name, &fs::read_to_string(&file)?)?;
    }
    let refused = stage.screen().wait("until it is refused", IN_FORCE_WITHIN, || {
        let tried = begun.elapsed();
        (!stage.connects("client", address(UNKNOWN), 443)).then_some(tried)
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

pub(super) fn ask_and_connect(stage: &mut Stage) -> Result<Seen, DemoError> {
    let told = stage.getent("client", "api.example.test")?;
    let output = stage.run("client", "curl -sS -m 2 http://api.example.test/")?;
    let page = output.stdout.trim();
    let is_told = told.iter().any(|address| address.to_string() == page);
    let text = match (output.success(), is_told) {
        (true, true) => format!("connected to {page}"),
        (true, false) => format!("connected to {page}, which it was not told"),
        (false, _) => "refused".to_owned(),
    };
    Ok(Seen::new(output.success() && is_told, text))
}

pub(super) fn try_a_name_that_is_not_allowed(stage: &mut Stage) -> Result<Seen, DemoError> {
    let told = stage.getent("client", "blog.example.test")?;
    let connected = stage.curl("client", "blog.example.test")?;
    let answered = told == [address(BLOG)];
    let answer = if answered { "answered" } else { "not answered" };
    Ok(Seen::new(
        answered && !connected,
        format!("{answer}, connection {}", verdict(!connected)),
    ))
}

pub(super) fn try_as_another_pod(stage: &mut Stage) -> Result<Seen, DemoError> {
    let before = stage.curl("other", API)?;
    stage.getent("other", "api.example.test")?;
    let after = stage.curl("other", API)?;
    Ok(Seen::new(
        !before && after,
        format!("{} before it asks, {} after", outcome(before), outcome(after)),
    ))
}

pub(super) fn try_a_wildcard(stage: &mut Stage) -> Result<Seen, DemoError> {
    let below = stage.curl("client", "img.eu.cdn.example.test")?;
    let itself = stage.curl("client", "cdn.example.test")?;
    Ok(Seen::new(
        below && !itself,
        format!(
            "img.eu.cdn.example.test {}, cdn.example.test {}",
            outcome(below),
            outcome(itself)
        ),
    ))
}

pub(super) fn use_every_address_of_many(stage: &mut Stage) -> Result<Seen, DemoError> {
    let told = stage.getent("client", "many.example.test")?;
    let connected = told
        .iter()
        .filter(|address| stage.connects("client", **address, 443))
        .count();
    Ok(Seen::new(
        told.len() == MANY && connected == MANY,
        format!("{} addresses told, {connected} connected", told.len()),
    ))
}

pub(super) fn connect_between_pods(stage: &mut Stage) -> Result<Seen, DemoError> {
    let worker = stage.pod("worker").address();
    let inside = stage.curl("other", format!("{worker}:8010"))?;
    let outside = stage.curl("other", format!("{worker}:8011"))?;
    let client = stage.curl("client", format!("{worker}:8010"))?;
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
