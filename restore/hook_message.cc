#include "restore/hook_message.h"

#include "absl/strings/str_cat.h"
#include "rekindle/v1/control_channel.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

const Json* Field(const Json& message, const char* field) {
  if (!message.is_object()) return nullptr;
  const auto found = message.find(field);
  return found == message.end() ? nullptr : &*found;
}

}  // namespace

Json ParseMessage(absl::string_view text) {
  Json message = Json::parse(text.begin(), text.end(), nullptr, false);
  return message.is_object() ? message : Json::object();
}

std::string TextOf(const Json& message, const char* field, absl::string_view otherwise) {
  const Json* value = Field(message, field);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(otherwise);
}

bool FlagOf(const Json& message, const char* field) {
  const Json* value = Field(message, field);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

int64_t NumberOf(const Json& message, const char* field, int64_t otherwise) {
  const Json* value = Field(message, field);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : otherwise;
}

std::vector<std::string> TextsOf(const Json& message, const char* field) {
  std::vector<std::string> texts;
  const Json* value = Field(message, field);
  if (value == nullptr || !value->is_array()) return texts;
  for (const Json& text : *value) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  return texts;
}

absl::StatusOr<std::string> MessageText(const Json& message) {
  std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= v1::kControlMessageLimit) return text;
  return absl::InvalidArgumentError(absl::StrCat("what a copy is told of itself takes ", text.size(),
                                                 " bytes, and its hook takes ", v1::kControlMessageLimit,
                                                 ": give it a smaller environment"));
}

}  // namespace rekindle::restore
