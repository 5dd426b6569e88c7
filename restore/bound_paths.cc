#include "restore/bound_paths.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace rekindle::restore {
namespace {

// "/" becomes "", so that what lies in a folder is what begins with it and a slash.
std::string WithoutEnd(const std::string& path) {
  std::string normal = std::filesystem::path(path).lexically_normal();
  while (!normal.empty() && normal.back() == '/') normal.pop_back();
  return normal;
}

bool LiesIn(std::string_view path, std::string_view folder) {
  return path.substr(0, folder.size()) == folder &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

BoundPaths::BoundPaths(const std::vector<std::pair<std::string, std::string>>& binds) {
  for (const auto& [from, to] : binds) binds_.emplace_back(WithoutEnd(from), WithoutEnd(to));
}

bool BoundPaths::Cover(std::string_view path) const {
  return !path.empty() && path[0] == '/' &&
         std::any_of(binds_.begin(), binds_.end(),
                     [path](const auto& bind) { return LiesIn(path, bind.second); });
}

std::string BoundPaths::OnMachine(const std::string& path) const {
  if (!Cover(path)) return path;
  std::string at = path;
  for (auto bind = binds_.rbegin(); bind != binds_.rend(); ++bind) {
    if (LiesIn(at, bind->second)) at = bind->first + at.substr(bind->second.size());
  }
  return at.empty() ? "/" : at;
}

v1::JobManifest BoundPaths::OnMachine(v1::JobManifest manifest) const {
  if (empty()) return manifest;
  manifest.set_working_directory(OnMachine(manifest.working_directory()));
  manifest.set_log(OnMachine(manifest.log()));
  for (v1::NeededFile& file : *manifest.mutable_files()) file.set_path(OnMachine(file.path()));
  for (v1::WrittenFile& file : *manifest.mutable_written_files()) file.set_path(OnMachine(file.path()));
  for (v1::StdioSlot& slot : *manifest.mutable_stdio()) slot.set_path(OnMachine(slot.path()));
  for (v1::SocketFolder& folder : *manifest.mutable_socket_folders())
    folder.set_path(OnMachine(folder.path()));
  return manifest;
}

bool BoundPaths::CoverSomethingOf(const v1::JobManifest& manifest) const {
  const auto covered = [this](const auto& entry) { return Cover(entry.path()); };
  return !empty() &&
         (Cover(manifest.working_directory()) ||
          std::any_of(manifest.files().begin(), manifest.files().end(), covered) ||
          std::any_of(manifest.socket_folders().begin(), manifest.socket_folders().end(), covered));
}

std::string BoundPaths::Text() const {
  std::string text;
  for (const auto& [from, to] : binds_) absl::StrAppend(&text, from.size(), ":", from, to.size(), ":", to);
  return text;
}

}  // namespace rekindle::restore
