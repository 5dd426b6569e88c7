#include "cli/group_arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/command_group.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"
#include "cli/paths.h"
#include "cli/store_arguments.h"

namespace rekindle::cli {
namespace {

// What a daemon that is called names itself, of which others say that it has no host.
constexpr char kHere[] = "here";

// "HOST=HOST", where the daemon that is called is "here" or nothing. Which hosts there are it knows.
absl::StatusOr<std::pair<std::string, std::string>> ParseMap(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.size() == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' can't be understood: write --map HOST=HOST, with 'here' for the daemon "
                     "that is asked"));
  }
  std::pair<std::string, std::string> hosts(text.substr(0, equals), text.substr(equals + 1));
  if (hosts.first == kHere) hosts.first.clear();
  if (hosts.second == kHere) hosts.second.clear();
  if (!hosts.second.empty()) {
    RK_RETURN_IF_ERROR(Annotate(CheckHostPort(hosts.second, AddressUse::kConnect), "--map"));
  }
  return hosts;
}

}  // namespace

absl::StatusOr<v1::GroupMember> ParseGroupMember(const std::string& text) {
  v1::GroupMember member;
  const size_t slash = text.rfind('/');
  if (slash != std::string::npos) member.set_host(text.substr(0, slash));
  const std::string job = slash == std::string::npos ? text : text.substr(slash + 1);
  if (job.empty() || slash == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' names no member: write [HOST/]JOB, such as node-b:7443/train"));
  }
  if (!member.host().empty()) {
    RK_RETURN_IF_ERROR(Annotate(CheckHostPort(member.host(), AddressUse::kConnect), text));
  }
  RK_ASSIGN_OR_RETURN(JobName named, ParseJobName(job));
  if (named.pid != 0) member.set_pid(named.pid);
  if (!named.name.empty()) member.set_job(std::move(named.name));
  return member;
}

void GroupArguments::AddTo(CLI::App& app) {
  group_ = AddCommandGroup(
      app, "group", "Capture jobs on several nodes as one, and bring them back",
      "  rekindle group ckpt train:step1 --member train-0 --member node-b:7443/train-1\n"
      "  rekindle group restore train:step1\n"
      "The set of images is complete or not there. The daemons of the nodes do it among themselves.\n");

  CLI::App* ckpt =
      AddCommand(*group_, "ckpt", "Take images of all members at one moment",
                 "  rekindle group ckpt train:step1 --member train-0 --member node-b:7443/train-1\n"
                 "  rekindle group ckpt train:drained --stop --member train-0 --member node-b:7443/train-1\n"
                 "Member I's image is NAME/I:TAG, in the store of its node.\n");
  ckpt->add_option("group", reference_, "The group's name")->type_name("NAME:TAG")->required();
  ckpt->add_option(
          "--member", members_,
          "A job: a PID or a job's name, with the address of its daemon if that is another; repeated")
      ->type_name("[HOST/]JOB")
      ->allow_extra_args(false)
      ->required();
  ckpt->add_flag("--stop", stop_, "End the jobs once all images are safe; if any is not, all run on");
  ckpt->add_flag("--replace", replace_, "Take over a name that exists");
  ckpt->add_flag("--tcp-established", tcp_established_, "Carry live TCP connections [when there are any]");
  ckpt->add_flag("--tcp-close", tcp_close_,
                 "Leave live TCP connections out: they are closed in the restored jobs");
  ckpt->add_option("--freeze-limit", freeze_limit_,
                   "How long a job may stand still for the others, before all is given up [10]")
      ->type_name("SECONDS")
      ->check(AboveZero());
  ckpt->add_option("--staging-memory", staging_memory_,
                   "RAM for the copy of each job's memory, such as 2G [half of what is free on its node]")
      ->type_name("SIZE");
  ckpt->add_option("--label", labels_, "Keep a label with the images; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  ckpt->add_option("--gpu-lock-timeout", gpu_lock_timeout_,
                   "How long work under way on a GPU may take to end [10]")
      ->type_name("SECONDS")
      ->check(AboveZero());
  checkpoint_files_.AddToCheckpoint(ckpt);

  CLI::App* restore = AddCommand(*group_, "restore", "Bring all members back, or none",
                                 "  rekindle group restore train:step1\n"
                                 "  rekindle group restore train:step1 --map node-b:7443=node-c:7443\n"
                                 "  rekindle group restore train:step1 --rollback append\n");
  restore->add_option("group", reference_, "The group's name")->type_name("NAME:TAG")->required();
  restore
      ->add_option(
          "--map", map_,
          "Members of one daemon are restored by another, whose store has their images; 'here': the daemon "
          "that is asked; may be repeated")
      ->type_name("HOST=HOST")
      ->allow_extra_args(false);
  restore->add_flag("--tcp-close", tcp_close_, "Close TCP connections of the images");
  restore->add_flag("--ignore-mismatch", ignore_mismatch_,
                    "Try although CPU, kernel, CRIU or the GPU's driver are not those of the images");
  restore
      ->add_option("--log-dir", log_directory_,
                   "Folder, on each node, for the members' output, as I.log [where it went before]")
      ->type_name("DIR");
  rollback_.AddToGroupRestore(restore);

  AddCommand(*group_, "ls", "List groups, and parts of groups that wait for their coordinator",
             "  rekindle group ls\n");
  CLI::App* rm =
      AddCommand(*group_, "rm", "Remove a group and all its images", "  rekindle group rm train:step1\n");
  rm->add_option("group", reference_, "The group's name")->type_name("NAME:TAG")->required();
  CLI::App* resolve = AddCommand(
      *group_, "resolve", "Decide about a group by hand, when a node is gone for good",
      "  rekindle group resolve 0123456789abcdef0123456789abcdef abort\n"
      "On a member whose coordinator is gone: publish or remove the images that wait for it. On the\n"
      "coordinator, after 'rm': forget members that are gone.\n");
  resolve->add_option("id", id_, "The group's id, from 'rekindle group ls'")->type_name("ID")->required();
  resolve->add_option("decision", decision_, "What to do with it")
      ->type_name("commit|abort")
      ->required()
      ->check(CLI::IsMember({"commit", "abort"}));
}

absl::StatusOr<Command> GroupArguments::FinishCheckpoint(const std::string& working_directory) const {
  v1::CheckpointGroupRequest request;
  request.set_reference(reference_);
  for (const std::string& text : members_) {
    RK_ASSIGN_OR_RETURN(*request.add_members(), ParseGroupMember(text));
  }
  request.set_replace(replace_);
  request.set_stop(stop_);
  request.set_tcp_established(tcp_established_);
  request.set_tcp_close(tcp_close_);
  request.set_freeze_limit_seconds(freeze_limit_);
  request.set_gpu_lock_timeout_seconds(gpu_lock_timeout_);
  checkpoint_files_.Apply(working_directory, &request);
  if (!staging_memory_.empty()) {
    RK_ASSIGN_OR_RETURN(uint64_t bytes, ParseBytes(staging_memory_));
    request.set_staging_budget_bytes(bytes);
  }
  for (const std::string& text : labels_) {
    RK_ASSIGN_OR_RETURN(v1::Label label, ParseLabel(text, "--label"));
    (*request.mutable_labels())[label.key()] = label.value();
  }
  return request;
}

absl::StatusOr<Command> GroupArguments::FinishRestore(const std::string& working_directory) const {
  v1::RestoreGroupRequest request;
  request.set_reference(reference_);
  for (const std::string& text : map_) {
    RK_ASSIGN_OR_RETURN(auto hosts, ParseMap(text));
    if (!request.mutable_host_map()->insert({hosts.first, hosts.second}).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--map names ", hosts.first.empty() ? kHere : hosts.first, " twice"));
    }
  }
  request.set_tcp_close(tcp_close_);
  request.set_ignore_mismatch(ignore_mismatch_);
  request.set_log_directory(Absolute(log_directory_, working_directory));
  RK_RETURN_IF_ERROR(rollback_.Apply(working_directory, &request));
  return request;
}

absl::StatusOr<Command> GroupArguments::Finish(const std::string& working_directory) const {
  const std::string name = group_->get_subcommands().front()->get_name();
  if (name == "ckpt") return FinishCheckpoint(working_directory);
  if (name == "restore") return FinishRestore(working_directory);
  if (name == "ls") return v1::ListGroupsRequest();
  if (name == "rm") {
    v1::RemoveGroupRequest request;
    request.set_reference(reference_);
    return request;
  }
  v1::ResolveGroupRequest request;
  request.set_id(id_);
  request.set_commit(decision_ == "commit");
  return request;
}

}  // namespace rekindle::cli
