#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/member_count.h"
#include "cli/rollback_table.h"
#include "cli/streamed_call.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

std::string HostOf(const std::string& host) { return host.empty() ? "here" : host; }

std::string StateOf(const v1::Group& group) {
  int settled = 0, lost = 0;
  for (const v1::GroupPart& part : group.parts()) {
    settled += part.settled() ? 1 : 0;
    lost += part.lost() ? 1 : 0;
  }
  const std::string share = absl::StrCat(" (", settled, " of ", group.parts_size(), ")");
  if (group.removed()) return "being removed" + share;
  if (group.complete()) return "complete";
  return lost > 0 ? absl::StrCat("incomplete (", lost, " lost)") : "committing" + share;
}

}  // namespace

int CheckpointGroup(Client& client, const Output& output, Interrupts& interrupts,
                    const v1::CheckpointGroupRequest& request) {
  MemberCount count(request.members_size());
  const absl::StatusOr<v1::GroupEvent> event = StreamedResult<v1::GroupEvent>(
      client, output, interrupts,
      [&](const auto& on_event) { return client.CheckpointGroup(request, on_event); },
      [&](ProgressBar& bar, const v1::GroupEvent& told) { count.Show(bar, told); },
      [](const v1::GroupEvent& told) { return told.has_result(); });
  if (!event.ok()) return output.Fail(event.status());
  const v1::GroupResult& result = event->result();
  for (const std::string& warning : result.warnings()) output.Warning(warning);
  for (const v1::CheckpointResult& member : result.members()) {
    for (const std::string& warning : member.warnings()) output.Warning(warning);
    for (const std::string& line : member.command_lines()) output.CommandLine(line);
  }
  output.Json(result);
  Table table(
      {{"IMAGE"}, {"HOST"}, {"FROZEN", Align::kRight}, {"MEMORY", Align::kRight}, {"NEW", Align::kRight}});
  for (int i = 0; i < result.members_size(); ++i) {
    const v1::CheckpointResult& member = result.members(i);
    table.AddRow({member.image().reference(), HostOf(result.group().parts(i).member().host()),
                  FormatSeconds(member.freeze_seconds()), FormatBytes(member.image().logical_bytes()),
                  FormatBytes(member.image().stored_bytes())});
  }
  output.Text(absl::StrCat("group ", result.group().reference(), " (", result.group().id(), ") is ",
                           result.group().complete() ? "complete" : "committed",
                           !request.stop()             ? ""
                           : result.group().complete() ? ", and its jobs have ended"
                                                       : ", and its jobs end",
                           ", in ", FormatSeconds(result.total_seconds()), "\n", table.ToString()));
  return kDone;
}

int RestoreGroup(Client& client, const Output& output, Interrupts& interrupts,
                 const v1::RestoreGroupRequest& request) {
  MemberCount count;  // how many they are, the daemon knows
  const absl::StatusOr<v1::GroupEvent> event = StreamedResult<v1::GroupEvent>(
      client, output, interrupts,
      [&](const auto& on_event) { return client.RestoreGroup(request, on_event); },
      [&](ProgressBar& bar, const v1::GroupEvent& told) { count.Show(bar, told); },
      [](const v1::GroupEvent& told) { return told.has_restored(); });
  if (!event.ok()) return output.Fail(event.status());
  const v1::RestoreGroupResult& result = event->restored();
  for (const v1::JobStarted& member : result.members()) {
    for (const std::string& warning : member.warnings()) output.Warning(warning);
  }
  output.Json(result);
  for (int i = 0; i < result.files_size(); ++i) {
    const std::string files = RollbackTable(result.files(i).files(), /*dry_run=*/false);
    if (!files.empty() && !output.json()) output.Note(absl::StrCat("member ", i, ":\n", files));
  }
  Table table({{"IMAGE"}, {"HOST"}, {"PID", Align::kRight}, {"NAME"}, {"LOG"}});
  for (int i = 0; i < result.members_size(); ++i) {
    const v1::Job& job = result.members(i).job();
    const std::string& host = result.group().parts(i).member().host();
    auto mapped = request.host_map().find(host);
    table.AddRow({job.image(), HostOf(mapped == request.host_map().end() ? host : mapped->second),
                  absl::StrCat(job.pid()), job.name(), job.log().empty() ? "-" : job.log()});
  }
  output.Text(absl::StrCat("group ", result.group().reference(), " runs again, after ",
                           FormatSeconds(result.total_seconds()), "\n", table.ToString()));
  return kDone;
}

int ListGroups(Client& client, const Output& output, const v1::ListGroupsRequest& request) {
  absl::StatusOr<v1::ListGroupsResponse> response = client.ListGroups(request);
  if (!response.ok()) return output.Fail(response.status());
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  output.Json(*response);
  const int64_t now = UnixNanos();
  Table table({{"GROUP"}, {"ID"}, {"CREATED"}, {"MEMBERS", Align::kRight}, {"STATE"}});
  for (const v1::Group& group : response->groups()) {
    table.AddRow({group.reference(), group.id(), Age(group.created_unix_ns(), now),
                  absl::StrCat(group.parts_size()), StateOf(group)});
  }
  for (const v1::PartInDoubt& part : response->in_doubt()) {
    table.AddRow({part.reference(), part.id(), Age(part.created_unix_ns(), now), "-",
                  absl::StrCat("in doubt: ", part.image(), " waits for ",
                               part.coordinator().empty() ? "this daemon" : part.coordinator())});
  }
  output.Text(table.ToString());
  return kDone;
}

int RemoveGroup(Client& client, const Output& output, const v1::RemoveGroupRequest& request) {
  absl::StatusOr<v1::RemoveGroupResponse> response = client.RemoveGroup(request);
  if (!response.ok()) return output.Fail(response.status());
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  output.Json(*response);
  output.Text(absl::StrCat("group ", request.reference(), " is removed\n"));
  return kDone;
}

int ResolveGroup(Client& client, const Output& output, const v1::ResolveGroupRequest& request) {
  absl::StatusOr<v1::ResolveGroupResponse> response = client.ResolveGroup(request);
  if (!response.ok()) return output.Fail(response.status());
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  output.Json(*response);
  for (const std::string& image : response->images()) {
    output.Text(absl::StrCat(image, request.commit() ? " is there\n" : " is removed\n"));
  }
  if (response->forgotten()) output.Text(absl::StrCat("group ", request.id(), " is forgotten\n"));
  return kDone;
}

}  // namespace rekindle::cli
