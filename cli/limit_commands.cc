#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

constexpr size_t kLongestPruned = 200;

std::string PercentOf(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Limit(uint64_t bytes) { return bytes == 0 ? "none" : FormatBytes(bytes); }

int ShowQuota(const Output& output, const absl::StatusOr<v1::GetQuotaResponse>& response) {
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  Table owners({{"OWNER"},
                {"UID", Align::kRight},
                {"IMAGES", Align::kRight},
                {"USED", Align::kRight},
                {"CODE", Align::kRight},
                {"LIMIT", Align::kRight},
                {"", Align::kRight}});
  for (const v1::OwnerQuota& owner : response->owners()) {
    owners.AddRow({owner.name().empty() ? "-" : Shown(owner.name(), 32), absl::StrCat(owner.uid()),
                   absl::StrCat(owner.images()), FormatBytes(owner.used_bytes()),
                   FormatBytes(owner.code_bytes()), Limit(owner.max_bytes()),
                   PercentOf(owner.used_bytes() + owner.code_bytes(), owner.max_bytes())});
  }
  if (!response->owners().empty()) output.Text(owners.ToString());
  if (response->has_store()) output.Text(StoreQuotaText(response->store()));
  return kDone;
}

}  // namespace

std::string StoreQuotaText(const v1::StoreQuota& quota) {
  const uint64_t used = quota.used_bytes() + quota.code_bytes();
  std::string text = absl::StrCat("used      ", FormatBytes(used), " of ");
  if (quota.max_bytes() == 0) {
    absl::StrAppend(&text, "no limit");
  } else {
    absl::StrAppend(&text, FormatBytes(quota.max_bytes()), " (", PercentOf(used, quota.max_bytes()), ")");
  }
  absl::StrAppend(&text, "\ndisk      ", PercentOf(quota.file_system_used_bytes(), quota.file_system_bytes()),
                  " of ", FormatBytes(quota.file_system_bytes()), " taken; ");
  if (quota.high_water_percent() == 0) {
    absl::StrAppend(&text, "no high-water mark\n");
  } else {
    absl::StrAppend(&text, "no new images from ", quota.high_water_percent(), " % on\n");
  }
  return text;
}

int GetQuota(Client& client, const Output& output, const v1::GetQuotaRequest& request) {
  return ShowQuota(output, client.GetQuota(request));
}

int SetQuota(Client& client, const Output& output, const v1::SetQuotaRequest& request) {
  return ShowQuota(output, client.SetQuota(request));
}

int PruneImages(Client& client, const Output& output, const v1::PruneImagesRequest& request) {
  return ShowPruned(output, client.PruneImages(request), request.dry_run());
}

int ShowPruned(const Output& output, const absl::StatusOr<v1::PruneImagesResponse>& response, bool dry_run) {
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const int64_t now = UnixNanos();
  Table table({{"IMAGE"}, {"CREATED"}, {"STORED", Align::kRight}, {""}, {"WHY"}});
  uint64_t gone = 0;
  for (const v1::PrunedImage& pruned : response->images()) {
    const v1::Image& image = pruned.image();
    gone += pruned.keep() ? 0 : 1;
    table.AddRow({Shown(image.reference(), kLongestPruned), Age(image.created_unix_ns(), now),
                  FormatBytes(image.stored_bytes() + image.metadata_bytes()),
                  pruned.keep() ? "kept"
                  : dry_run     ? "would be removed"
                                : "removed",
                  pruned.keep()     ? Shown(absl::StrJoin(pruned.reasons(), ", "), 100)
                  : image.damaged() ? "what it builds upon is not there"
                                    : "no rule keeps it"});
  }
  if (!response->images().empty()) output.Text(table.ToString());
  std::string text =
      absl::StrCat(dry_run ? "would remove " : "removed ", gone, gone == 1 ? " image" : " images",
                   " that brought ", FormatBytes(response->removed_stored_bytes()));
  if (response->has_garbage()) {
    absl::StrAppend(&text, "; freed ", FormatBytes(response->garbage().bytes_freed()), "\n");
  } else {
    absl::StrAppend(&text, dry_run || gone == 0 ? "\n" : "; 'rekindle gc' frees the space\n");
  }
  output.Text(text);
  return kDone;
}

}  // namespace rekindle::cli
