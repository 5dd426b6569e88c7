#include "cli/supervision_arguments.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/durations.h"
#include "cli/paths.h"
#include "cli/transfer_arguments.h"

namespace rekindle::cli {
namespace {

// "5m", "1h30m" is none; in seconds.
absl::StatusOr<double> Seconds(const std::string& text, absl::string_view option) {
  absl::StatusOr<uint64_t> milliseconds = ParseMilliseconds(text);
  if (milliseconds.ok()) return static_cast<double>(*milliseconds) * 1e-3;
  absl::StatusOr<int64_t> age = ParseAge(text);
  if (age.ok()) return static_cast<double>(*age) * 1e-9;
  if (absl::IsOutOfRange(milliseconds.status()))
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", milliseconds.status().message()));
  return absl::InvalidArgumentError(absl::StrCat(
      option, ": '", text, "' is no duration: write a number and ms, s, m, h, d or w, such as 30s or 2h"));
}

// "0", "0s": which is a duration for few.
bool IsNoTime(absl::string_view text) {
  absl::string_view unit = text;
  while (absl::ConsumePrefix(&unit, "0")) {
  }
  return unit.size() < text.size() && (unit.empty() || !absl::ascii_isdigit(unit[0])) &&
         Seconds(absl::StrCat("1", unit), "").ok();
}

absl::StatusOr<double> Share(const std::string& text) {
  absl::string_view number = text;
  const bool percent = absl::ConsumeSuffix(&number, "%");
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0) || value > (percent ? 100 : 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--overhead: '", text, "' is no share of the job's time: write it like 1% or 0.01"));
  }
  return percent ? value / 100 : value;
}

}  // namespace

const std::vector<std::string>& SupervisionArguments::OptionsWithValue() {
  static const auto* options = new std::vector<std::string>{
      "--every",    "--restarts",    "--backoff",    "--retry-for",    "--hang", "--hang-sign",
      "--rollback", "--ignore-path", "--track-path", "--keep-removed", "--keep", "--image-name",
      "--overhead", "--from",        "--copy-to",    "--stop-on"};
  return *options;
}

void SupervisionArguments::AddTo(CLI::App* run) {
  run_ = run;
  run->add_option("--every", every_,
                  "Take an image this often and bring the job back when it dies: 5m, 30s, or 'auto'")
      ->type_name("TIME|auto");
  run->add_option("--restarts", restarts_,
                  "Bring it back at most so often; alone: without images by interval [3]")
      ->type_name("N");
  run->add_option("--backoff", backoff_, "Wait before the second restart in a row, doubled each time [1s]")
      ->type_name("TIME");
  run->add_option("--retry-for", retry_for_,
                  "Try so long to bring it back when the machine has no room for it [10m]")
      ->type_name("TIME");
  run->add_option(
         "--hang", hang_,
         "Kill it and bring it back when it shows no progress for so long: what it reports through the "
         "hook, if it does, else --hang-sign")
      ->type_name("TIME");
  run->add_option(
         "--hang-sign", hang_sign_,
         "With --hang, of a job that reports nothing: any (CPU time, input, output; one that spins or "
         "has threads that tick never hangs so), output (its output alone) [any]")
      ->type_name("SIGN")
      ->check(CLI::IsMember({"any", "output"}));
  run->add_option("--from", from_,
                  "In the place of a command: an image that it goes on from, with what was its own")
      ->type_name("IMAGE");
  run->add_flag(
      "--resume", resume_,
      "Go on from the newest image of its --name that can be restored, and with the job itself where it "
      "runs; begin with the command where there is no image");
  run->add_option(
         "--stop-on", stop_on_,
         "Signals to this command, as from a scheduler, that end the job with a last image: TERM,USR1")
      ->type_name("SIGNAL,...");
  rollback_.AddToRun(run);
  run->add_option("--keep", keep_, "Images to keep of it [3]")->type_name("N");
  run->add_option("--image-name", image_name_, "Name of its images, without tag [its own]")
      ->type_name("NAME");
  run->add_option("--overhead", overhead_,
                  "With --every auto: the share of its time that images may take [1%]")
      ->type_name("PERCENT");
  run->add_flag("--tcp-close", tcp_close_,
                "Bring it back without its TCP connections, as to a machine with another address");
  run->add_flag("--ignore-mismatch", ignore_mismatch_,
                "Bring it back although CPU, kernel, CRIU or the GPU's driver are not those of its image");
  run->add_option("--copy-to", copy_to_,
                  "Copy each image there as it comes, as 'rekindle copy' does, and keep as many copies")
      ->type_name("HOST|DIR|rclone:REMOTE:PATH");
  run->add_flag("--at-boot", at_boot_,
                "Bring it back after a restart of the machine, when the daemon starts");
}

absl::Status SupervisionArguments::Apply(const GlobalOptions& globals, const std::string& working_directory,
                                         v1::RunRequest* request) const {
  static constexpr const char* kOnlyWith[] = {
      "--backoff",    "--retry-for",    "--hang-sign", "--rollback",        "--ignore-path",
      "--track-path", "--keep-removed", "--keep",      "--image-name",      "--overhead",
      "--at-boot",    "--from",         "--tcp-close", "--ignore-mismatch", "--copy-to",
      "--resume",     "--stop-on"};
  if (run_->count("--every") == 0 && run_->count("--restarts") == 0 && run_->count("--hang") == 0) {
    for (const char* option : kOnlyWith) {
      if (run_->count(option) != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(option, " is for jobs that are supervised: give --every, --restarts or --hang too"));
      }
    }
    return absl::OkStatus();
  }
  if (resume_ && !from_.empty())
    return absl::InvalidArgumentError("--resume finds the image that --from would name: give one of the two");
  if (resume_ && request->name().empty())
    return absl::InvalidArgumentError("--resume goes by --name: give it");
  if (!stop_on_.empty() && request->detach()) {
    return absl::InvalidArgumentError(
        "--stop-on is for signals to this command, which ends at once with --detach: 'rekindle stop "
        "--checkpoint' ends a job so");
  }
  v1::Supervision* policy = request->mutable_supervision();
  if (every_ == "auto") {
    policy->set_every_auto(true);
  } else if (!every_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(every_, "--every"));
    policy->set_every_seconds(seconds);
  }
  policy->set_restarts(restarts_);
  if (keep_ == 0) return absl::InvalidArgumentError("--keep: at least one image is kept");
  policy->set_keep_images(keep_);
  if (!backoff_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(backoff_, "--backoff"));
    policy->set_backoff_seconds(seconds);
  }
  if (!retry_for_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(retry_for_, "--retry-for"));
    if (seconds <= 0) return absl::InvalidArgumentError("--retry-for: give more than no time");
    policy->set_retry_seconds(seconds);
  }
  if (!hang_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(hang_, "--hang"));
    policy->set_hang_seconds(seconds);
  }
  if (!hang_sign_.empty() && !(policy->hang_seconds() > 0))
    return absl::InvalidArgumentError("--hang-sign goes with --hang");
  if (hang_sign_ == "output") policy->set_hang_sign(v1::Supervision::OUTPUT);
  if (!overhead_.empty()) {
    if (!policy->every_auto()) return absl::InvalidArgumentError("--overhead goes with --every auto");
    RK_ASSIGN_OR_RETURN(const double share, Share(overhead_));
    policy->set_overhead_budget(share);
  }
  rollback_.Apply(working_directory, policy);
  policy->set_image_name(image_name_);
  request->set_from_image(from_);
  policy->set_at_boot(at_boot_);
  policy->set_tcp_close(tcp_close_);
  policy->set_ignore_mismatch(ignore_mismatch_);
  return copy_to_.empty() ? absl::OkStatus()
                          : FillCopyTo(globals, working_directory, policy->mutable_copy_to());
}

absl::StatusOr<RunOptions> SupervisionArguments::OptionsOfRun() const {
  RunOptions options;
  options.resume = resume_;
  if (!stop_on_.empty()) {
    RK_ASSIGN_OR_RETURN(options.stop_on, ParseStopSignals(stop_on_));
  }
  return options;
}

absl::Status SupervisionArguments::FillCopyTo(const GlobalOptions& globals,
                                              const std::string& working_directory, v1::CopyTo* to) const {
  const bool tls = !globals.tls_ca.empty() || !globals.tls_certificate.empty() || !globals.tls_key.empty();
  RK_ASSIGN_OR_RETURN(const ImagePlace place, ParsePlace("--copy-to", copy_to_, tls, working_directory));
  to->set_place(place.where);
  const bool is_daemon =
      place.bucket.empty() && !absl::StartsWith(place.where, "/") && !absl::StartsWith(place.where, "unix:");
  if (!is_daemon) return absl::OkStatus();
  to->set_tls_ca(Absolute(globals.tls_ca, working_directory));
  to->set_tls_certificate(Absolute(globals.tls_certificate, working_directory));
  to->set_tls_key(Absolute(globals.tls_key, working_directory));
  return absl::OkStatus();
}

void SupervisionArguments::AddToStop(CLI::App* stop) {
  stop->add_option("jobs", stop_targets_, "The jobs' names or PIDs")->required()->type_name("NAME|PID");
  stop->add_option("--grace", grace_, "Time between SIGTERM and SIGKILL [10s]; 0s: none")->type_name("TIME");
  stop->add_flag("--ckpt,--checkpoint", stop_checkpoint_,
                 "Take a last image first; without it the job runs on");
}

absl::StatusOr<StopJobs> SupervisionArguments::StopRequest() const {
  v1::StopJobRequest request;
  if (IsNoTime(grace_)) {
    request.set_grace_seconds(0);
  } else if (!grace_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(grace_, "--grace"));
    request.set_grace_seconds(seconds);
  }
  request.set_checkpoint(stop_checkpoint_);
  StopJobs jobs;
  for (const std::string& target : stop_targets_) {
    jobs.requests.push_back(request);
    if (int pid = 0; absl::SimpleAtoi(target, &pid)) {
      jobs.requests.back().set_pid(pid);
    } else {
      jobs.requests.back().set_job(target);
    }
  }
  return jobs;
}

void SupervisionArguments::AddToAttach(CLI::App* attach) {
  attach->add_option("job", attach_target_, "The job's name")->required()->type_name("NAME");
}

v1::AttachJobRequest SupervisionArguments::AttachRequest() const {
  v1::AttachJobRequest request;
  request.set_job(attach_target_);
  return request;
}

void SupervisionArguments::AddToWait(CLI::App* wait) {
  wait->add_option("jobs", wait_targets_, "The jobs' names or PIDs")->required()->type_name("NAME|PID");
  wait->add_option("--timeout", wait_timeout_, "Wait no longer than this [as long as it takes]")
      ->type_name("TIME");
}

absl::StatusOr<v1::WaitForJobsRequest> SupervisionArguments::WaitRequest() const {
  v1::WaitForJobsRequest request;
  for (const std::string& job : wait_targets_) request.add_jobs(job);
  if (IsNoTime(wait_timeout_)) {
    request.set_timeout_seconds(0);
  } else if (!wait_timeout_.empty()) {
    RK_ASSIGN_OR_RETURN(const double seconds, Seconds(wait_timeout_, "--timeout"));
    request.set_timeout_seconds(seconds);
  }
  return request;
}

void SupervisionArguments::AddToLogs(CLI::App* logs) {
  logs->add_option("job", logs_.job, "The job's name or PID")->required()->type_name("NAME|PID");
  logs->add_flag("-f,--follow", logs_.follow, "Go on with what it writes from now on, until it has ended");
  logs->add_option("-n,--tail", logs_.tail, "Only the last lines [all]")->type_name("LINES");
}

}  // namespace rekindle::cli
