//! Interleaved rounds, and what they show.

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Rounds of each contender.
    pub rounds: usize,
    /// Trips there and back of a round.
    pub trips: u32,
    /// Batches of a round.
    pub batches: u32,
}

/// A name, and what measures one round: a figure for each column.
pub type Contender<'a> = (&'static str, Box<dyn FnMut() -> Vec<f64> + 'a>);

/// Median, 99th percentile and mean in microseconds.
pub fn of_trips(mut trips: Vec<Duration>) -> Vec<f64> {
    trips.sort();
    let micros = |trip: Duration| trip.as_nanos() as f64 / 1e3;
    let sum: Duration = trips.iter().sum();
    vec![
        micros(trips[trips.len() / 2]),
        micros(trips[trips.len() * 99 / 100]),
        micros(sum) / trips.len() as f64,
    ]
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut of: Vec<f64> = of.collect();
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Measures all in turn and prints a table. The ratio is that of the first column.
pub fn compare(title: &str, columns: &[&str], contenders: &mut [Contender<'_>], plan: Plan) {
    let mut shown = vec![Vec::new(); contenders.len()];
    for round in 0..=plan.rounds {
        for (shown, (_, run)) in shown.iter_mut().zip(contenders.iter_mut()) {
            let figures = run();
            // The first round only warms up.
            if round > 0 {
                shown.push(figures);
            }
        }
    }
    print!("\n{title:<36}");
    for column in columns {
        print!(" {column:>12}");
    }
    println!(" {:>8}", "ratio");
    for (own, (name, _)) in shown.iter().zip(contenders) {
        print!("  {name:<34}");
        for column in 0..columns.len() {
            print!(
                " {:>12.2}",
                median(own.iter().map(|figures| figures[column]))
            );
        }
        let ratios = own
            .iter()
            .zip(&shown[0])
            .map(|(own, first)| own[0] / first[0]);
        println!(" {:>8.2}", median(ratios));
    }
}
