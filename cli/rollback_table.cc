#include "cli/rollback_table.h"

#include "absl/strings/str_cat.h"
#include "base/human_units.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

constexpr size_t kLongestPath = 200;

std::string Done(const v1::FileRollback& file, bool dry_run) {
  switch (file.action()) {
    case v1::FileRollback::UNCHANGED:
      return "as it was";
    case v1::FileRollback::TRUNCATED:
      return dry_run ? "cut off" : "was cut off";
    case v1::FileRollback::PUT_BACK:
      return dry_run ? "put back" : "was put back";
    case v1::FileRollback::MADE_AGAIN:
      return dry_run ? "made again" : "was made again";
    case v1::FileRollback::SET_ASIDE:
      return dry_run ? "set aside" : "was set aside";
    case v1::FileRollback::IGNORED:
      return "ignored";
    default:
      return "left";
  }
}

}  // namespace

std::string RollbackTable(const google::protobuf::RepeatedPtrField<v1::FileRollback>& files, bool dry_run) {
  Table table({{"FILE"}, {"ROLL-BACK"}, {"SIZE", Align::kRight}, {"DISCARDED", Align::kRight}, {"KEPT IN"}});
  std::string remarks;
  int rows = 0;
  for (const v1::FileRollback& file : files) {
    const bool stays =
        file.action() == v1::FileRollback::UNCHANGED || file.action() == v1::FileRollback::IGNORED;
    if (stays && !dry_run) continue;
    ++rows;
    const std::string path = Shown(file.path(), kLongestPath);
    table.AddRow({path, Done(file, dry_run), FormatBytes(file.size()),
                  file.discarded_bytes() > 0 ? FormatBytes(file.discarded_bytes()) : "-",
                  file.tail_copy().empty() ? "-" : Shown(file.tail_copy(), kLongestPath)});
    if (!file.why().empty()) absl::StrAppend(&remarks, path, ": ", Shown(file.why(), 1000), "\n");
  }
  return rows == 0 ? "" : absl::StrCat(table.ToString(), remarks);
}

}  // namespace rekindle::cli
