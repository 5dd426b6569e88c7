#include "restore/criu_files.h"

#include "absl/strings/str_cat.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::restore {

absl::StatusOr<std::string> ReadCriuFile(const store::ImageReader& image, absl::string_view name) {
  return image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, name));
}

absl::StatusOr<std::string> ReadCriuFileIfAny(const store::ImageReader& image, absl::string_view name) {
  absl::StatusOr<std::string> content = ReadCriuFile(image, name);
  if (absl::IsNotFound(content.status())) return std::string();
  return content;
}

}  // namespace rekindle::restore
