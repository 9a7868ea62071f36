// Draws the page out of what poc/report/explorer.py packs: DataTables the table, Vega-Lite the charts.
const find = id => document.getElementById(id);
const bytes = id => Uint8Array.from(atob(find(id).textContent), character => character.charCodeAt(0));
const unpack = id => new Response(new Blob([bytes(id)]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
const load = text => import(URL.createObjectURL(new Blob([text], {type: 'text/javascript'})));
// An element with this text, which is never read as HTML: names of machines come from users.
const made = (tag, text = '', fields = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), {textContent: text, ...fields});
  element.append(...inside);
  return element;
};

const [libraries, data] = await Promise.all([unpack('libraries'), unpack('data')]);
document.head.prepend(made('style', libraries.style));
const [{default: DataTable}] = await Promise.all([load(libraries.table), load(libraries.chart)]);
const {columns, values} = data;
const named = Object.fromEntries(columns.map(column => [column.name, column]));
const rows = data.runs.map((run, index) => Object.fromEntries([['index', index],
  ...columns.map(({name}) => [name, values[name][index]])]));

const shown = (row, {name, kind, digits}) => {
  const value = row[name];
  if (value === null || value === '') return '';
  if (kind === 'flag') return value ? 'yes' : 'no';
  if (kind !== 'number') return value;
  const exact = digits === null || row.origin === 'published';
  return value.toLocaleString('en-US', {useGrouping: Math.abs(value) >= 10000,
    ...(exact ? {maximumSignificantDigits: 6} : {minimumFractionDigits: digits, maximumFractionDigits: digits})});
};

// Filters: any of the chosen values of each column.
const filters = data.filters.map(name => ({name, chosen: new Set()}));
const passes = (row, but) => filters.every(({name, chosen}) => name === but || !chosen.size || chosen.has(row[name]));
for (const filter of filters) {
  const {name, chosen} = filter, all = [...new Set(values[name])].sort();
  const change = value => ({target}) => {
    chosen[target.checked ? 'add' : 'delete'](value);
    table.draw();
  };
  filter.counts = new Map(all.map(value => [value, made('small', '', {className: 'soft'})]));
  const choices = all.map(value => made('label', '', {},
    made('input', '', {type: 'checkbox', value, onchange: change(value)}),
    made('span', value || '(none)'), filter.counts.get(value)));
  filter.title = made('summary');
  filter.box = made('details', '', {id: `filter-${name}`, name: 'filter'}, filter.title,
    made('div', '', {className: 'choices'}, ...choices));
}
const clear = made('button', 'Clear filters', {onclick: () => {
  filters.forEach(({chosen}) => chosen.clear());
  find('filters').querySelectorAll('input').forEach(input => { input.checked = false; });
  table.search('').draw();
}});
find('filters').append(made('b', 'Filter'), ...filters.map(({box}) => box), clear);
document.addEventListener('click', ({target}) => filters.forEach(({box}) => { box.open &&= box.contains(target); }));

function tell() {
  for (const {name, chosen, title, box, counts} of filters) {
    const words = ['', `: ${[...chosen][0] || '(none)'}`][chosen.size] ?? `: ${chosen.size} chosen`;
    title.textContent = named[name].title + words;
    box.className = chosen.size ? 'on' : '';
    const tally = new Map();
    for (const row of rows) if (passes(row, name)) tally.set(row[name], (tally.get(row[name]) ?? 0) + 1);
    counts.forEach((element, value) => { element.textContent = tally.get(value) ?? 0; });
  }
  const published = rows.filter(row => row.origin === 'published').length, measured = rows.length - published;
  const visible = table.rows({search: 'applied'}).count();
  find('count').textContent = `${visible} of ${rows.length} rows (${measured} measured, ${published} published)`;
}

// The chart: two numeric columns against each other, of the rows that the table shows.
const kindOf = column => column.kind === 'number' ? 'quantitative' : 'nominal';
const numeric = columns.filter(({kind}) => kind === 'number');
const spans = name => {
  const held = values[name].filter(value => value !== null);
  return held.every(value => value > 0) && Math.max(...held) > 30 * Math.min(...held);
};
const axisOf = (axis, usual, choices) => {
  const select = made('select', '', {id: axis, onchange: () => { log.checked = spans(select.value); draw(); }},
    ...choices.map(({name, title}) => new Option(title, name)));
  select.value = named[usual] ? usual : choices[0]?.name;
  const log = made('input', '', {type: 'checkbox', id: `${axis}-log`, onchange: () => draw()});
  log.checked = select.value && spans(select.value);
  find('axes').append(made('span', '', {className: 'axis'}, made('label', axis, {htmlFor: axis}), select,
    ...(axis === 'colour' ? [] : [made('label', '', {}, log, ' log')])));
  return {select, log};
};
const axes = [axisOf('x', 'global_batch', numeric), axisOf('y', 'samples_per_second', numeric),
  axisOf('colour', 'machine', columns)];
const embed = (element, spec, rows) => vegaEmbed(element,
  {config: data.charts.config, width: 'container', autosize: {type: 'fit', contains: 'padding'}, ...spec, data: {values: rows}},
  {renderer: 'svg', actions: {export: true, source: false, compiled: false, editor: false}});
let selected = -1, drawing = Promise.resolve();
const draw = () => { drawing = drawing.then(plot); };
// A logarithmic axis is marked at powers of ten, a short one at twice and five times these too.
function axisFor(column, log, points) {
  const axis = {field: column.name, type: 'quantitative', title: column.title};
  if (!log) return {...axis, scale: {zero: false}, axis: {tickCount: 6}};
  const figures = points.map(row => Math.log10(row[column.name]));
  const low = Math.floor(Math.min(...figures)), length = Math.ceil(Math.max(...figures)) - low + 1;
  const decades = Array.from({length}, (_, index) => 10 ** (low + index)), steps = length > 4 ? [1] : [1, 2, 5];
  const ticks = decades.flatMap(decade => steps.map(step => step * decade));
  return {...axis, scale: {type: 'log', nice: true}, axis: {values: ticks, format: '~s'}};
}
async function plot() {
  const [x, y, colour] = axes.map(({select}) => named[select.value]), logs = axes.map(({log}) => log.checked);
  if (!x || !colour) return;
  const kept = (value, log) => value !== null && (!log || value > 0);
  const visible = table.rows({search: 'applied'}).data().toArray();
  const points = visible.filter(row => kept(row[x.name], logs[0]) && kept(row[y.name], logs[1]));
  find('plotted').textContent = points.length
    ? `${points.length} of these ${visible.length} rows have both figures. Click a point to open it; drag or `
      + 'Shift + wheel moves the axes, a double click puts them back.'
    : 'No row that the table shows has both figures.';
  if (!points.length) return find('chart').replaceChildren();
  const legend = innerWidth < 700 ? {orient: 'bottom', columns: 1} : {};
  const told = new Set([x, y, colour, ...columns.filter(column => column.shown)]);
  const chart = structuredClone(data.charts.rows);
  chart.params[0].value = selected;
  chart.encoding.shape.legend = legend;
  Object.assign(chart.encoding, {
    x: axisFor(x, logs[0], points),
    y: axisFor(y, logs[1], points),
    color: {field: colour.name, type: kindOf(colour), title: colour.title, legend},
    tooltip: [...told].map(column => ({field: column.name, title: column.title, type: kindOf(column)})),
  });
  const {view} = await embed(find('chart'), chart, points);
  view.addEventListener('click', (event, item) => { if (item?.datum?.index !== undefined) choose(item.datum.index); });
  find('chart').view = view;
}

// A run: its figures, and of each take its windows, accuracy and parts of wall time.
const address = row => row.run_id ? `#run=${encodeURIComponent(row.run_id)}` : `#row=${row.index}`;
function choose(index) {
  mark(index);
  if (location.hash === address(rows[index])) open(); else location.hash = address(rows[index]);
}
function mark(index) {
  selected = index;
  find('chart').view?.signal('picked', index).run();
  table.rows().deselect();
  const place = table.rows({search: 'applied', order: 'applied'}).indexes().indexOf(index);
  if (place >= 0) table.page(Math.floor(place / table.page.len())).draw('page').row(index).select();
}
function take(row) {
  const head = [row.model || row.study, row.global_batch && `total batch ${row.global_batch}`].filter(Boolean).join(', ');
  const {origin, outcome, machine, framework, started} = row, number = row.repeat && `repeat ${row.repeat}`;
  const about = [origin, outcome, machine, framework, started, number].filter(Boolean).join(' · ');
  const article = made('article', '', {}, made('h2', head), made('div', about, {className: 'soft'}));
  const plots = Object.entries(data.charts.take).map(([name, {title, ...chart}]) => {
    const values = data.runs[row.index]?.[name] ?? [], element = made('div', '', {className: 'plot'});
    if (values.length) article.append(made('h3', title), element);
    return () => values.length && embed(element, {height: 150, ...chart}, values);
  });
  const filled = columns.filter(column => row[column.name] !== false && shown(row, column) !== '');
  article.append(made('h3', 'All its figures'), made('dl', '', {}, ...filled.flatMap(column => [
    made('dt', column.title, {title: column.about}), made('dd', shown(row, column))])));
  return {article, plots};
}
async function open() {
  const [, kind, wanted] = /^#(run|row)=(.*)$/.exec(location.hash) ?? [];
  find('run').classList.toggle('open', Boolean(kind));
  if (!kind) return selected < 0 || mark(-1);
  const found = rows.filter(row => address(row) === location.hash || row.computes && row.computes === wanted);
  const first = found.find(row => row.index === selected) ?? found.at(-1);
  if (first && first.index !== selected) mark(first.index);
  const takes = [...found].sort((one, other) => (other === first) - (one === first)).map(take);
  const missing = takes.length ? [] : [made('p', `No run ${wanted} in this file.`)];
  find('takes').replaceChildren(...takes.map(({article}) => article), ...missing);
  find('run').scrollTop = 0;
  await Promise.all(takes.flatMap(({plots}) => plots.map(plot => plot())));
}
find('close').onclick = () => { location.hash = ''; };
document.addEventListener('keydown', ({key}) => { if (key === 'Escape') location.hash = ''; });
addEventListener('hashchange', open);

// The table. Empty cells come last, whichever way a column is sorted.
const compare = sign => (one, other) => (one === '') - (other === '') || sign * ((one > other) - (one < other));
Object.assign(DataTable.ext.type.order, {
  'value-pre': value => value ?? '', 'value-asc': compare(1), 'value-desc': compare(-1)});
DataTable.ext.errMode = 'throw';
const cell = column => (value, type, row) => {
  if (type !== 'display') return value;
  const text = DataTable.util.escapeHtml(String(shown(row, column)));
  return column.name === 'run_id' && text ? `<a href="${DataTable.util.escapeHtml(address(row))}">${text}</a>` : text;
};
const table = new DataTable('#rows', {
  data: rows, order: [], pageLength: 25, autoWidth: false, select: {style: 'single', toggleable: false, info: false},
  columns: columns.map(column => ({
    data: column.name, title: DataTable.util.escapeHtml(column.title), visible: column.shown, type: 'value',
    render: cell(column), searchable: column.kind === 'text',
    className: column.kind === 'number' ? 'dt-right' : 'dt-left',
  })),
  layout: {
    topStart: {buttons: [{extend: 'colvis', text: 'Columns', collectionLayout: 'fixed four-column'},
      {extend: 'csv', text: 'Download CSV', filename: 'rows'}]},
    topEnd: 'search', bottomStart: ['pageLength', 'info'], bottomEnd: 'paging',
  },
});
table.search.fixed('filters', (text, row) => passes(row));
table.on('search.dt', () => { tell(); draw(); });
table.on('click', 'tbody tr', ({currentTarget, target}) => {
  const row = table.row(currentTarget);
  if (row.any() && !target.closest('a')) choose(row.index());
});
tell();
draw();
await drawing;
await open();
document.body.dataset.ready = performance.now().toFixed(0);
