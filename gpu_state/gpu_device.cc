#include "gpu_state/gpu_device.h"

#include <charconv>
#include <cstddef>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace rekindle::gpu {

std::string FormatUuid(const cuda::Uuid& uuid) {
  std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(uuid.bytes), sizeof uuid.bytes));
  absl::string_view h = hex;
  return absl::StrCat("GPU-", h.substr(0, 8), "-", h.substr(8, 4), "-", h.substr(12, 4), "-", h.substr(16, 4),
                      "-", h.substr(20));
}

absl::StatusOr<cuda::Uuid> ParseUuid(absl::string_view text) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "GPU-");
  const std::string hex = absl::StrReplaceAll(digits, {{"-", ""}});
  cuda::Uuid uuid = {};
  bool valid = hex.size() == 2 * sizeof uuid.bytes;
  for (size_t i = 0; valid && i < sizeof uuid.bytes; ++i) {
    const char* const at = hex.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, uuid.bytes[i], 16);
    valid = error == std::errc() && end == at + 2;
  }
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no GPU's UUID: `nvidia-smi -L` lists them (GPU-8a6c2f1e-…)"));
  }
  return uuid;
}

}  // namespace rekindle::gpu
