#include "cli/clone_arguments.h"

#include "absl/strings/str_cat.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"

namespace rekindle::cli {
namespace {

constexpr const char* kOnlyWithClone[] = {"--count", "--net",  "--fill",      "--memory",   "--cpus",
                                          "--env",   "--bind", "--processes", "--record-ms"};

}  // namespace

void AddTimelineOptions(CLI::App* command, TimelineOptions* options) {
  command
      ->add_option("--trace", options->trace_file,
                   "Write what was done when here, for Perfetto and chrome://tracing")
      ->type_name("FILE");
  command->add_flag("--explain", options->explain, "Tell where the time went, on standard error");
}

void CloneArguments::AddTo(CLI::App* restore) {
  restore_ = restore;
  restore->add_flag("--clone", clone_, "As a copy in a sandbox of its own; its memory comes while it runs");
  AddSandboxOptionsTo(restore);
  restore
      ->add_option("--fill", fill_,
                   "Memory that a clone does not touch: never, idle (in the background), eager [idle]")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"never", "idle", "eager"}));
  restore
      ->add_option(
          "--record-ms", record_ms_,
          "How long the working set is recorded at most without the hook [1000; 30000 if it listens]")
      ->type_name("MS")
      ->check(CLI::Range(1, 600000));
}

void CloneArguments::AddSandboxOptionsTo(CLI::App* command) {
  command->add_option("--count", count_, "So many copies [1]")->type_name("K")->check(CLI::Range(1, 10000));
  command->add_option("--net", network_, "Network of a copy: host, none, own [host]")
      ->type_name("NET")
      ->check(CLI::IsMember({"host", "none", "own"}));
  command->add_option("--memory", memory_, "Limit of a copy's memory, such as 512M")->type_name("SIZE");
  command->add_option("--cpus", cpus_, "Limit of a copy's CPU time, in CPUs")
      ->type_name("N")
      ->check(AboveZero());
  command->add_option("--processes", processes_, "Limit of a copy's processes and threads")
      ->type_name("N")
      ->check(AboveZero());
  command->add_option("--env", environment_, "Environment variable for a copy with the hook; repeatable")
      ->type_name("K=V")
      ->allow_extra_args(false);
  command->add_option("--bind", binds_, "Folder or file of this machine to be seen in a copy; repeatable")
      ->type_name("HOST:PATH")
      ->allow_extra_args(false);
}

absl::Status CloneArguments::Apply(v1::RestoreRequest* request) const {
  if (!clone_) {
    for (const char* option : kOnlyWithClone) {
      if (restore_->count(option) > 0) {
        return absl::InvalidArgumentError(absl::StrCat(option, " goes with --clone"));
      }
    }
    return absl::OkStatus();
  }
  return Fill(request->mutable_clone());
}

absl::Status CloneArguments::Fill(v1::CloneOptions* clone) const {
  clone->set_count(count_);
  clone->set_network(network_ == "none"  ? v1::CloneOptions::NONE
                     : network_ == "own" ? v1::CloneOptions::OWN
                                         : v1::CloneOptions::HOST);
  clone->set_fill(fill_ == "never"   ? v1::CloneOptions::NEVER
                  : fill_ == "eager" ? v1::CloneOptions::EAGER
                                     : v1::CloneOptions::IDLE);
  if (!memory_.empty()) {
    absl::StatusOr<uint64_t> bytes = ParseBytes(memory_);
    if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat("--memory: ", bytes.status().message()));
    clone->set_memory_bytes(*bytes);
  }
  clone->set_cpus(cpus_);
  clone->set_max_processes(processes_);
  clone->set_record_ms(record_ms_);
  for (const std::string& variable : environment_) {
    RK_ASSIGN_OR_RETURN(auto named, ParseAssignment("--env", variable));
    (*clone->mutable_environment())[named.first] = named.second;
  }
  for (const std::string& bind : binds_) {
    const size_t colon = bind.find(':');
    if (colon == std::string::npos || colon == 0 || bind[0] != '/' || bind.substr(colon + 1, 1) != "/") {
      return absl::InvalidArgumentError(
          absl::StrCat("--bind '", bind, "': write two absolute paths, HOST:PATH"));
    }
    v1::Bind* entry = clone->add_binds();
    entry->set_from(bind.substr(0, colon));
    entry->set_to(bind.substr(colon + 1));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::cli
