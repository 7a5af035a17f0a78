//! An nginx of the bench's own: TLS with an RSA key on a loopback port, one worker on the first CPU.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::target::{bound, send};
use crate::process;

const PORT: u16 = 18_443;
/// Where it tells its counts, without TLS.
const STATUS_PORT: u16 = 18_444;
const PATIENCE: Duration = Duration::from_secs(10);

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    master: Child,
    url: String,
}

impl Nginx {
    /// Of its worker.
    pub const CPU: &str = "0";

    /// Starts it, and waits until its worker runs.
    ///
    /// # Errors
    /// nginx or openssl is missing, or the port is taken.
    pub fn start(folder: &Path) -> Result<Self> {
        let folder = folder.join("nginx");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let (key, certificate) = (folder.join("rsa.key"), folder.join("rsa.pem"));
        if !certificate.is_file() {
            let mut command = Command::new("openssl");
            command.args(["req", "-x509", "-newkey", "rsa:2048"]);
            command.args(["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"]);
            process::output(command.arg(&key).arg("-out").arg(&certificate))?;
        }
        let settings = folder.join("nginx.conf");
        let text = format!(
            "user root; daemon off; worker_processes 1; worker_cpu_affinity 1; pid {folder}/pid;\n\
             error_log {folder}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n\
             fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n\
             server {{ listen 127.0.0.1:{PORT} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             ssl_session_cache off; ssl_session_tickets off; location / {{ return 200 \"ok\"; }} }}\n\
             server {{ listen 127.0.0.1:{STATUS_PORT}; location / {{ stub_status; }} }} }}\n",
            folder = folder.display(),
            certificate = certificate.display(),
            key = key.display(),
        );
        fs::write(&settings, text).with_context(|| settings.display().to_string())?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&settings).arg("-p").arg(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let master = bound(&mut command).spawn().context("`nginx` cannot run")?;
        let mut nginx = Self { master, url: format!("https://127.0.0.1:{PORT}/") };
        let deadline = Instant::now() + PATIENCE;
        while nginx.worker().is_err() {
            if nginx.master.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("nginx did not start: see {}/error.log", folder.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // The worker listens a moment after it is there.
        std::thread::sleep(Duration::from_millis(100));
        Ok(nginx)
    }

    /// The worker's process id.
    ///
    /// # Errors
    /// There is none yet.
    pub fn worker(&self) -> Result<u32> {
        let pid = self.master.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        first.context("nginx has no worker")
    }

    /// Requests so far, those for this count included.
    ///
    /// # Errors
    /// It does not tell.
    pub fn requests(&self) -> Result<u64> {
        let mut stream =
            TcpStream::connect(("127.0.0.1", STATUS_PORT)).context("nginx's status")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page).context("nginx's status")?;
        // A line of headings, and below it: accepted and handled connections, requests.
        let mut lines = page.lines().skip_while(|line| !line.starts_with("server accepts"));
        let numbers = lines.nth(1).and_then(|line| line.split_whitespace().nth(2));
        numbers
            .and_then(|text| text.parse().ok())
            .with_context(|| format!("nginx's status:\n{page}"))
    }

    /// Where it answers.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its worker ends with it.
        send(self.master.id(), libc::SIGTERM);
        let _ = self.master.wait();
    }
}
