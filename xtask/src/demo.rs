//! stub
use clap::Args;
/// stub
#[derive(Args)]
pub struct Demo {}
impl Demo {
    pub fn run(&self) -> anyhow::Result<()> {
        Ok(())
    }
}
