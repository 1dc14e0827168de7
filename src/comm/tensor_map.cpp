#include "comm/tensor_map.h"

#include "base/json.h"

namespace scalewright {

namespace {

/// Names, dtypes and shapes as JSON text.
std::string describe(const std::map<std::string, at::Tensor>& tensors) {
  Json list = Json::array();
  for (const auto& [name, tensor] : tensors) list.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  return list.dump();
}

void send_map(const Group& group, const std::map<std::string, at::Tensor>& tensors) {
  const std::string text = describe(tensors);
  group.send(at::full({1}, static_cast<int64_t>(text.size()), at::kLong), 0);
  group.send(at::tensor(std::vector<std::uint8_t>(text.begin(), text.end()), at::kByte), 0);
  for (const auto& [name, tensor] : tensors)
    if (tensor.numel() > 0) group.send(tensor.cpu(), 0);
}

void receive_map(const Group& group, int from, std::map<std::string, at::Tensor>& tensors) {
  at::Tensor size = at::empty({1}, at::kLong);
  group.receive(size, from);
  at::Tensor text = at::empty({size.item<int64_t>()}, at::kByte);
  group.receive(text, from);
  const auto* data = reinterpret_cast<const char*>(text.const_data_ptr());
  for (const Json& entry : Json::parse(data, data + text.numel())) {
    at::Tensor tensor = at::empty(entry[2].get<std::vector<int64_t>>(), static_cast<at::ScalarType>(entry[1].get<int>()));
    if (tensor.numel() > 0) group.receive(tensor, from);
    tensors[entry[0].get<std::string>()] = tensor;
  }
}

}  // namespace

std::map<std::string, at::Tensor> gather_on_first(const Group& group, std::map<std::string, at::Tensor> tensors) {
  if (group.alone()) return tensors;
  if (group.rank() > 0) send_map(group, tensors);
  else
    for (int from = 1; from < group.size(); ++from) receive_map(group, from, tensors);
  group.barrier();
  return tensors;
}

}  // namespace scalewright
