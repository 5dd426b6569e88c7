#include "cli/table.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/printable.h"

namespace rekindle::cli {

size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void Table::AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string out;
  auto add_line = [&](auto cell_of) {
    const size_t begin = out.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const size_t padding = widths[i] - DisplayWidth(cell);
      if (i > 0) out += "  ";
      if (columns_[i].align == Align::kRight) out.append(padding, ' ');
      out += cell;
      if (columns_[i].align != Align::kRight) out.append(padding, ' ');
    }
    while (out.size() > begin && out.back() == ' ') out.pop_back();
    out += '\n';
  };
  add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) -> const std::string& { return row[i]; });
  return out;
}

std::string Age(int64_t unix_ns, int64_t now_unix_ns) {
  int64_t seconds = std::max<int64_t>(0, now_unix_ns - unix_ns) / 1'000'000'000;
  if (seconds < 60) return absl::StrCat(seconds, " s ago");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ago");
  if (seconds < 2 * 86400) return absl::StrCat(seconds / 3600, " h ago");
  return absl::StrCat(seconds / 86400, " d ago");
}

std::string Shown(const std::string& text, size_t longest) {
  std::string out;
  for (char c : Printable(text)) {
    if (DisplayWidth(out) >= longest && (static_cast<unsigned char>(c) & 0xc0) != 0x80) return out + "…";
    out += c == '\n' || c == '\t' ? ' ' : c;
  }
  return out;
}

}  // namespace rekindle::cli
