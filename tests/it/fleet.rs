//! Compares the load that ten thousand nodes put on a signer with the goals.

#[path = "../bench/fleet.rs"]
mod simulation;

#[test]
fn spreads_requests_of_a_fleet_over_time() {
    let cases = simulation::cases();
    assert_eq!(cases.len(), 7);
    let mut missed = Vec::new();
    for case in cases {
        let (load, ratio) = (&case.load, case.load.ratio());
        let summary = format!(
            "{}: {} requests, {:.1} in a {} on average, {} at most: {ratio:.2}",
            case.what, load.requests, load.mean, case.per, load.peak
        );
        println!("{summary}");
        assert!(load.requests > 2000, "too few requests to judge: {summary}");
        if case.goal.is_some_and(|goal| ratio > goal) {
            missed.push(summary);
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
