#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/streamed_call.h"
#include "cli/table.h"
#include "daemon/version.h"

namespace rekindle::cli {

int CollectGarbage(Client& client, const Output& output, const v1::CollectGarbageRequest& request) {
  absl::StatusOr<v1::CollectGarbageResponse> response = client.CollectGarbage(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(absl::StrCat(
      request.dry_run() ? "would free " : "freed ", FormatBytes(response->bytes_freed()), ": ",
      response->packs_removed(), " packs removed, ", response->packs_rewritten(), " rewritten, ",
      response->leftovers_removed(), " leftovers of dead writers removed",
      response->packs_in_use() == 0
          ? ""
          : absl::StrCat("; ", response->packs_in_use(), " packs are in use and were left to the next gc"),
      "\n"));
  return kDone;
}

namespace {

// What is damaged in the data only a check that reads it knows, and only a repair that does can mend.
absl::string_view WhatFsckLeaves(const v1::FsckRequest& request, const v1::FsckResult& result) {
  if (result.problems().empty()) {
    return request.read_data() ? "the store is whole"
                               : "its structure is whole ('rekindle fsck --read' checks the data, too)";
  }
  if (request.repair()) return "repaired as far as possible";
  return request.read_data() ? "run 'rekindle fsck --read --repair'" : "run 'rekindle fsck --repair'";
}

}  // namespace

void ShowChecked(const Output& output, const v1::FsckResult& result, bool read, absl::string_view lost,
                 absl::string_view also, absl::string_view what_is_left) {
  output.Json(result);
  for (const std::string& problem : result.problems()) output.Text(absl::StrCat("problem: ", problem, "\n"));
  if (!result.lost_images().empty())
    output.Text(absl::StrCat(lost, ": ", absl::StrJoin(result.lost_images(), ", "), "\n"));
  output.Text(absl::StrCat("checked ", result.images_checked(), " images", also.empty() ? "" : ", ", also,
                           read ? absl::StrCat(", ", FormatBytes(result.bytes_read()), " read") : "", ": ",
                           what_is_left, "\n"));
}

int Fsck(Client& client, const Output& output, Interrupts& interrupts, const v1::FsckRequest& request) {
  const absl::StatusOr<v1::FsckEvent> event = StreamedResult<v1::FsckEvent>(
      client, output, interrupts, [&](const auto& on_event) { return client.Fsck(request, on_event); });
  if (!event.ok()) return output.Fail(event.status());
  const v1::FsckResult& result = event->result();
  ShowChecked(output, result, request.read_data(), "can't be read any more",
              absl::StrCat(result.chunks_checked(), " chunks"), WhatFsckLeaves(request, result));
  return result.problems().empty() || (request.repair() && result.lost_images().empty()) ? kDone : kFailed;
}

namespace {

std::string MemoryTierText(const v1::GetStatsResponse& response) {
  if (!response.has_memory()) return "cache     no pager runs: nothing is in memory for clones\n";
  const v1::MemoryTier& memory = response.memory();
  const std::string huge =
      memory.taken_bytes() == 0
          ? ""
          : absl::StrFormat(", %.0f %% in huge pages", 100.0 * static_cast<double>(memory.huge_bytes()) /
                                                           static_cast<double>(memory.taken_bytes()));
  std::string text =
      absl::StrCat("cache     ", FormatBytes(memory.taken_bytes()), " of ", FormatBytes(memory.bound_bytes()),
                   ", ", memory.frames(), " frames", huge, "\n");
  absl::StrAppend(&text, "          ", memory.hits(), " hits, ", memory.misses(), " misses");
  if (memory.hits() + memory.misses() > 0)
    absl::StrAppendFormat(&text, " (%.1f %% hits)", 100 * memory.hit_rate());
  absl::StrAppend(&text, ", ", memory.evictions(), " evictions, ", memory.warmed_frames(), " frames warmed",
                  memory.warming() ? " so far" : "", "\n");
  absl::StrAppend(&text, "clones    ", memory.clones(), " being served, ", memory.missing_pages(),
                  " pages missing; ", memory.clones_served(), " served so far\n");
  return text;
}

std::string ScrubText(const v1::StoreScrub& scrub) {
  std::string text = "scrub     not all of it was read again yet";
  if (scrub.last_ended_unix_ns() != 0) {
    text = absl::StrCat("scrub     all of it was read again by ",
                        absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixNanos(scrub.last_ended_unix_ns()),
                                         absl::LocalTimeZone()),
                        ", ", FormatBytes(scrub.last_bytes()));
  }
  if (scrub.pass_began_unix_ns() != 0) {
    const uint64_t all = scrub.pass_bytes() + scrub.pass_bytes_left();
    absl::StrAppendFormat(
        &text, "; %.0f %% of a pass that is under way",
        all == 0 ? 100.0 : 100.0 * static_cast<double>(scrub.pass_bytes()) / static_cast<double>(all));
  }
  if (scrub.damaged_places() == 0) return text + "; no damage is known\n";
  absl::StrAppend(&text, "\ndamage    ", scrub.damaged_places(), " places, can't be restored whole: ",
                  scrub.damaged_images().empty() ? "no image" : absl::StrJoin(scrub.damaged_images(), ", "),
                  "\n");
  for (const v1::ScrubDamage& damage : scrub.damage()) {
    absl::StrAppend(&text, "          pack ", damage.pack(), ", offset ", damage.offset(), ": ",
                    Shown(damage.why(), 200), "\n");
  }
  return text;
}

}  // namespace

int GetStats(Client& client, const Output& output, const v1::GetStatsRequest& request) {
  absl::StatusOr<v1::GetStatsResponse> response = client.GetStats(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  std::string ratio = response->pack_bytes() == 0
                          ? "-"
                          : absl::StrFormat("%.1f to 1", static_cast<double>(response->logical_bytes()) /
                                                             static_cast<double>(response->pack_bytes()));
  output.Text(absl::StrCat(
      "images    ", response->images(), "\nmemory    ", FormatBytes(response->logical_bytes()),
      "\nstored    ", FormatBytes(response->pack_bytes()), " in ", response->packs(), " packs, ",
      response->chunks(), " chunks (", ratio, ")\nmetadata  ", FormatBytes(response->metadata_bytes()),
      "\nfree      ", FormatBytes(response->free_bytes()), "\n"));
  if (response->has_quota()) output.Text(StoreQuotaText(response->quota()));
  if (response->has_scrub()) output.Text(ScrubText(response->scrub()));
  output.Text(MemoryTierText(*response));
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  return kDone;
}

int Doctor(Client& client, const Output& output, const v1::DoctorRequest& request) {
  absl::StatusOr<v1::DoctorResponse> response = client.Doctor(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table table({{""}, {"CHECK"}, {"FOUND"}, {"CURE"}});
  bool works = true;
  for (const v1::Check& check : response->checks()) {
    const bool missing = check.result() == v1::Check::MISSING;
    works &= !missing;
    table.AddRow({missing                                ? "MISSING"
                  : check.result() == v1::Check::WARNING ? "warning"
                                                         : "ok",
                  check.name(), Shown(check.detail(), 100), check.cure()});
  }
  output.Text(table.ToString());
  output.Text(works ? "Rekindle works on this machine.\n" : "Rekindle can't work on this machine yet.\n");
  return works ? kDone : kUnsupported;
}

int GetVersion(Client& client, const Output& output, const v1::GetVersionRequest& request) {
  absl::StatusOr<v1::GetVersionResponse> response = client.GetVersion(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  if (response->version() != daemon::kVersion) {
    output.Warning(absl::StrCat("rekindled is of version ", response->version(), ", and this command of ",
                                daemon::kVersion, ": restart the one, or install the other"));
  }
  std::string text = absl::StrCat("rekindle ", daemon::kVersion, "\n");
  if (request.find_criu()) {
    absl::StrAppend(&text, "criu     ",
                    response->criu_version().empty()
                        ? "none found: run scripts/setup.sh"
                        : absl::StrCat(response->criu_version(), " (", response->criu_origin(), ")"),
                    "\n");
  }
  absl::StrAppend(&text, "service  ",
                  response->daemon() ? absl::StrCat("rekindled ", response->version()) : "in this process",
                  "\nstore    ", response->store(), "\n");
  output.Text(text);
  return kDone;
}

}  // namespace rekindle::cli
